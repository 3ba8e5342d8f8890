"""A submitting process by value: shares, counts, and what a flight wants in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from demo.database import Legs
from demo.flights import FLOWN, aircraft_id
from demo.submit import FlightContext, Progress, parse_share
from tests.demo.test_verify import FLIGHTS, make_database
from waltz import PartitionLocalLock, TransactionBuilder, TransactionId


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = make_database(tmp_path / "flights.db")
    yield engine
    engine.dispose()


def test_a_flight_is_the_next_leg_of_its_aircraft_under_its_lock(engine: Engine) -> None:
    progress = Progress()
    context = FlightContext(FLIGHTS[1], Legs(engine), progress)
    number = aircraft_id("N2")
    assert context.partition_id(4) == number % 4
    builder = TransactionBuilder()
    assert context.execute(builder)
    assert builder.header == FLOWN
    assert json.loads(builder.data)["leg"] == 3
    assert builder.write_locks == (PartitionLocalLock("aircraft", number).hash,)
    context.on_lock_failure(TransactionId(5))
    context.execute(builder)
    context.on_completion(True)
    context.on_application()
    line = progress.line()
    assert [line[name] for name in ("executed", "conflicts", "completed", "applied")] == [
        2,
        1,
        1,
        1,
    ]


def test_an_end_without_a_verdict_stops_the_process(engine: Engine) -> None:
    progress = Progress()
    progress.count("submitted")
    context = FlightContext(FLIGHTS[0], Legs(engine), progress)
    context.on_exception(ValueError("no"))
    context.on_exception(ValueError("later"))
    assert progress.failure == "flight 1: ValueError('no')"
    assert progress.wait_until_applied(0)


def test_all_is_applied_when_as_many_were_applied_as_submitted() -> None:
    progress = Progress()
    assert progress.wait_until_applied(0)
    progress.count("submitted")
    assert not progress.wait_until_applied(0)
    progress.count("applied")
    assert progress.wait_until_applied(0)


def test_a_refused_verdict_is_a_failure(engine: Engine) -> None:
    progress = Progress()
    FlightContext(FLIGHTS[0], Legs(engine), progress).on_completion(False)
    assert progress.failure == "flight 1: not written"


def test_shares_are_written_as_index_and_count() -> None:
    assert parse_share("0/4") == (0, 4)
    assert parse_share("3/4") == (3, 4)
    for text in ("4/4", "-1/4", "1", "a/b", "1/0"):
        with pytest.raises(ValueError, match=r"not a share: '.*'; expected the form 0/4"):
            parse_share(text)
