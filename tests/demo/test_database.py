"""The application's tables: what applying transactions makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from demo.database import (
    Legs,
    aircraft_rows,
    apply_flights,
    flight_rows,
    open_database,
    summary_rows,
)
from tests.demo.test_verify import FLIGHTS, LOG, event, make_database, transactions


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = make_database(tmp_path / "flights.db")
    yield engine
    engine.dispose()


def test_what_was_applied_comes_back_byte_for_byte(engine: Engine) -> None:
    for partition_id, events in enumerate(LOG):
        assert list(flight_rows(engine, partition_id)) == [tuple(each) for each in events]
    assert list(flight_rows(engine, 2)) == []


def test_an_aircraft_has_its_last_leg_and_all_its_miles(engine: Engine) -> None:
    assert aircraft_rows(engine) == {"N1": (4, 1700), "N2": (2, 700), "MQ unknown": (1, 400)}


def test_the_next_leg_is_seen_as_soon_as_it_is_committed(engine: Engine) -> None:
    legs = Legs(engine)
    assert legs.last_leg("N9") == 0
    assert legs.last_leg("N2") == 2
    with engine.connect() as connection:
        apply_flights(connection, transactions(1, [event(3, FLIGHTS[1], 3)]))
        assert legs.last_leg("N2") == 2
        connection.commit()
    assert legs.last_leg("N2") == 3


def test_a_transaction_cannot_be_applied_twice(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(IntegrityError):
        apply_flights(connection, transactions(0, LOG[0][:1]))
    assert aircraft_rows(engine)["N1"] == (4, 1700)


def test_summaries_count_kinds_and_miles(engine: Engine) -> None:
    assert summary_rows(engine, ["carrier"]) == [("MQ", 3, 2, 0, 1200), ("UA", 4, 0, 0, 1600)]


def test_opening_again_keeps_what_is_there(engine: Engine, tmp_path: Path) -> None:
    again = open_database(tmp_path / "flights.db")
    assert aircraft_rows(again) == aircraft_rows(engine)
    again.dispose()
