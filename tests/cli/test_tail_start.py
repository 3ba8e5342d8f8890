"""The start of `waltz tail`: what may be given, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from waltz.cli.tail_start import Since, StartType, said_of
from waltz.operators.log_times_shell import TransactionAt
from waltz.types import ReplicaId, TransactionId

NOON = Since(datetime(2026, 1, 1, 12, tzinfo=UTC))


def given(text: str) -> object:
    return StartType().convert(text, None, None)


def test_a_start_is_a_word_an_id_an_age_or_a_time() -> None:
    assert given("earliest") == "earliest"
    assert given("17") == 17
    assert given("2026-01-01T13:00+01:00") == NOON
    for text, age in (("90s", timedelta(seconds=90)), ("3d", timedelta(days=3))):
        found = given(text)
        assert isinstance(found, Since)
        assert timedelta(0) <= datetime.now(UTC) - age - found.moment < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("yesterday", "expected earliest, latest or a transaction ID, an age"),
        ("2026-01-01T12:00", "no time zone"),
        ("2990-01-01T12:00Z", "in the future"),
        ("99999999d", "before any calendar"),
        ("0001-01-01T00:00+14:00", "before any calendar"),
        ("0001-01-01T00:00Z", "before any calendar"),
    ],
)
def test_other_starts_are_refused_with_what_to_write(text: str, fault: str) -> None:
    with pytest.raises(click.BadParameter, match=fault):
        given(text)


def place(first: int, later: int | None, **problems: str) -> TransactionAt:
    known = {ReplicaId(node): reason for node, reason in problems.items()}
    return TransactionAt(
        TransactionId(first), None if later is None else TransactionId(later), known
    )


def test_only_what_is_not_exact_is_said() -> None:
    assert said_of(0, 9, place(5, 5), NOON, 5) == ""
    assert said_of(0, 9, place(10, None), NOON, 10) == ""
    assert said_of(0, -1, place(0, None), NOON, 0) == ""
    assert said_of(0, 9, place(0, 0), NOON, 0).startswith(
        "partition 0 begins after 2026-01-01T12:00"
    )
    assert said_of(0, 9, place(5, 6), NOON, 5) == (
        "partition 0: transaction 5 may be older than 2026-01-01T12:00:00.000Z: nobody knows"
    )
    assert "transactions 5 to 9 may be older" in said_of(0, 9, place(5, None, s1="away"), NOON, 5)
    assert said_of(0, 9, place(5, None, s1="away"), NOON, 5).endswith("nobody knows (away)")


def test_nothing_is_said_of_transactions_that_are_not_printed() -> None:
    """-n leaves them out."""
    assert said_of(0, 9, place(0, 0), NOON, 7) == ""
    assert said_of(0, 9, place(2, 5), NOON, 5) == ""
    assert "transaction 4 may be older" in said_of(0, 9, place(2, 5), NOON, 4)
    assert "transactions 3 to 4 may be older" in said_of(0, 9, place(2, 5), NOON, 3)
