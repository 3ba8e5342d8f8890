"""The fold in plain Python: what measures are, and from which transaction on a row parts."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waltz.spark.pipelines.fold import (
    ColumnDifference,
    RowPlace,
    State,
    TableDifference,
    WrongRow,
    differs,
    explained,
    finished,
    merged,
    started,
    stored,
)
from waltz.spark.pipelines.tables import Function

FUNCTIONS: tuple[Function, ...] = ("count", "count_if", "sum", "min", "max", "first", "last")
MEASURES: dict[str, Function] = {f"the_{each}": each for each in FUNCTIONS}
Row = tuple[RowPlace, list[Any]]


def rows(*values: Any) -> list[Row]:
    return [
        (RowPlace(number, 0), [each, each is not None and each > 0, each, each, each, each, each])
        for number, each in enumerate(values)
    ]


def folded(made_of: list[Row]) -> State:
    states = [started(FUNCTIONS, values, place) for place, values in made_of]
    return reduce(lambda one, other: merged(FUNCTIONS, one, other), states)


@given(st.lists(st.one_of(st.none(), st.integers()), min_size=1, max_size=9), st.randoms())
def test_rows_come_to_the_same_in_any_order(values: list[int | None], random: Any) -> None:
    made_of = rows(*values)
    known = [each for each in values if each is not None]
    expected = (
        len(known),
        sum(each > 0 for each in known),
        sum(known) if known else None,
        min(known, default=None),
        max(known, default=None),
        values[0],
        values[-1],
        *(0, 0, 0, len(values) - 1),
    )
    random.shuffle(made_of)
    assert finished(folded(made_of)) == expected


def test_of_one_transactions_elements_the_position_says_which_is_first() -> None:
    states = [started(["first", "last"], [n, n], RowPlace(7, 1, n)) for n in (2, 0, 1)]
    assert reduce(lambda one, other: merged(["first", "last"], one, other), states).values == [0, 2]


def test_values_are_as_sqlite_keeps_them() -> None:
    there = timezone(timedelta(hours=2))
    assert stored(True) == 1
    assert type(stored(True)) is int
    assert stored(date(2026, 1, 2)) == "2026-01-02"
    assert stored(datetime(2026, 1, 2, 3, 4, 5, tzinfo=there)) == "2026-01-02 01:04:05"
    assert stored(datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)) == "2026-01-02 03:04:05.25"
    assert stored(bytearray(b"x")) == b"x"
    assert started(["max"], [float("nan")], RowPlace(0, 0)).values == [None]
    assert started(["count"], [float("nan")], RowPlace(0, 0)).values == [1]


def told(made_of: list[Row], changed: tuple[RowPlace, ...] = (), **cells: Any) -> TableDifference:
    """Say what is wrong with the row once some of its cells have been changed."""
    state = folded(made_of)
    names = [*MEASURES, "first_partition", "first_transaction_id"]
    names += ["last_partition", "last_transaction_id"]
    found = dict(zip(names, finished(state), strict=True)) | cells
    values = tuple(found.values())
    assert differs(state, values)
    row = WrongRow(("k",), state, values)
    return explained(row, "t", ["key"], MEASURES, made_of, changed)


def test_a_column_parts_after_the_longest_run_that_comes_to_it() -> None:
    made_of = rows(5, 3, 2, 9, -4)
    (column,) = told(made_of, the_sum=8).columns
    assert (column.expected, column.found) == (15, 8)
    assert (column.partition_id, column.transaction_id) == (0, 2)
    assert told(made_of, the_max=5).transaction_id == 3
    assert told(made_of, the_count=1).transaction_id == 1
    assert told(made_of, last_transaction_id=3).transaction_id == 4
    # No run of them comes to that.
    assert told(made_of, the_sum=16).transaction_id == 0
    assert told(made_of, the_first=6).transaction_id == 0
    # A sum that comes back to the same: the longest run counts.
    assert told(rows(5, -5, 5, 1), the_sum=5).transaction_id == 3


def test_a_row_that_lost_its_last_transactions_parts_at_the_first_of_these() -> None:
    made_of = rows(5, 3, 2)
    stale: dict[str, Any] = dict(zip(MEASURES, finished(folded(made_of[:1])), strict=False))
    found = told(made_of, **stale, last_transaction_id=0)
    assert (found.partition_id, found.transaction_id) == (0, 1)
    assert "the_sum is 5, expected 10, since partition 0, transaction 1" in str(found)


def test_where_the_log_has_changed_its_blocks_say_where() -> None:
    found = told(rows(5, 3, 2), (RowPlace(1, 0), RowPlace(2, 0)), the_sum=8)
    assert found.transaction_id == 1
    assert "where this row has 2 transactions" in str(found)


def test_rows_that_are_missing_or_too_many_are_told_with_their_place() -> None:
    state = folded(rows(5, 3))
    missing = explained(WrongRow(("k",), state, None), "t", ["key"], MEASURES, [])
    assert str(missing) == (
        "WALTZ-2008 table t, row key = 'k': missing; the log gives this row from partition 0,"
        " transaction 0"
    )
    found = (*finished(state)[:-4], 1, 17, 1, 18)
    surplus = explained(WrongRow((b"k",), None, found), "t", ["key"], MEASURES, [])
    assert surplus.to_json() == {
        "table": "t",
        "key": {"key": "6b"},
        "columns": [],
        "partition": 1,
        "transaction": 17,
        "text": "WALTZ-2008 table t, row key = b'k': the log does not give this row, which"
        " claims to begin at partition 1, transaction 17",
    }


def test_a_difference_is_json_also_where_a_number_is_infinite() -> None:
    column = ColumnDifference("d", float("inf"), float("-inf"), 0, 7)
    found = TableDifference("t", {"k": 1}, (column,), 0, 7, "").to_json()
    assert "Infinity, " not in json.dumps(found["columns"]).replace('"Infinity"', "")
    (told,) = found["columns"]
    assert (told["expected"], told["found"]) == ("Infinity", "-Infinity")
