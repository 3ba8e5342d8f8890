"""Folds the rows of tables in plain Python, one after the other, and finds where a table first
differs.

The proof of a table must share nothing with the code that made it: Spark's aggregates and SQLite's
joins are not used here. Each measure is defined here a second time, as simply as possible. Pure:
the caller brings the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from waltz.spark.codes import DIFFERENT
from waltz.spark.pipelines.tables import PLACES, Function

MARKS: Final = "waltz_marks"
BLOCKS: Final = "waltz_blocks"
UNDECODABLE: Final = "waltz_undecodable"

StoredValue: TypeAlias = int | float | str | bytes | None
"""A value as SQLite keeps it."""


class RowPlace(NamedTuple):
    """The origin of a row of the fold, in the order of `first` and `last`."""

    transaction_id: int
    partition: int
    position: int = 0


@dataclass(slots=True)
class State:
    """The folded state of some transactions in one row; `values` per measure."""

    first: RowPlace
    last: RowPlace
    values: list[Any]


def started(functions: Sequence[Function], values: Sequence[Any], place: RowPlace) -> State:
    """Return the state of one row of the fold; `values` are the arguments of the measures."""
    return State(place, place, [_alone(*each) for each in zip(functions, values, strict=True)])


def _alone(function: Function, value: Any) -> Any:
    match function:
        case "count":
            return 0 if value is None else 1
        case "count_if":
            return 1 if value is True else 0
        case _:
            # A float that is no number is counted, and is no value for anything else.
            return None if isinstance(value, float) and value != value else value


def merged(functions: Sequence[Function], one: State, other: State) -> State:
    """Return the joint state of two sets of transactions, which share none."""
    values = [_together(function, one, other, index) for index, function in enumerate(functions)]
    return State(min(one.first, other.first), max(one.last, other.last), values)


def _together(function: Function, one: State, other: State, index: int) -> Any:
    ours, theirs = one.values[index], other.values[index]
    if function == "first":
        return ours if one.first < other.first else theirs
    if function == "last":
        return ours if one.last > other.last else theirs
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    if function == "min":
        return min(ours, theirs)
    if function == "max":
        return max(ours, theirs)
    return ours + theirs


def finished(state: State) -> tuple[StoredValue, ...]:
    """Return the row's measures and places as SQLite keeps them, in the order of the columns."""
    return (
        *map(stored, state.values),
        state.first.partition,
        state.first.transaction_id,
        state.last.partition,
        state.last.transaction_id,
    )


def stored(value: Any) -> StoredValue:
    """Return a value of Spark as SQLite keeps it: times as texts of UTC, truth as 0 and 1."""
    match value:
        case bool():
            return int(value)
        case datetime():
            moment = value.astimezone(UTC).replace(tzinfo=None)
            return (
                moment.isoformat(" ").rstrip("0") if moment.microsecond else moment.isoformat(" ")
            )
        case date():
            return value.isoformat()
        case bytearray():
            return bytes(value)
        case _:
            return value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column that differs from the fold of the log.

    partition_id, transaction_id  the first transaction after which the column differs.
    """

    name: str
    expected: StoredValue
    found: StoredValue
    partition_id: int
    transaction_id: int

    def __str__(self) -> str:
        return (
            f"{self.name} is {self.found!r:.200}, expected {self.expected!r:.200}, since partition"
            f" {self.partition_id}, transaction {self.transaction_id}"
        )


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A row of a table, or of the data kept with the tables, that differs from the fold of the log.

    columns         the columns that differ; none if the row is missing, or is one too many.
    partition_id    with `transaction_id` the first transaction after which the row differs. For a
                    row that is one too many: the first transaction that it claims as its own.
    detail          further explanation.
    """

    table: str
    key: Mapping[str, StoredValue]
    columns: tuple[ColumnDifference, ...]
    partition_id: int
    transaction_id: int
    detail: str

    def __str__(self) -> str:
        key = ", ".join(f"{name} = {value!r:.80}" for name, value in self.key.items())
        told = "; ".join([*map(str, self.columns), *([self.detail] if self.detail else [])])
        return f"{DIFFERENT} table {self.table}, row {key}: {told}"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "key": {name: json_value(value) for name, value in self.key.items()},
            "columns": [
                {
                    "column": each.name,
                    "expected": json_value(each.expected),
                    "found": json_value(each.found),
                    "partition": each.partition_id,
                    "transaction": each.transaction_id,
                }
                for each in self.columns
            ],
            "partition": self.partition_id,
            "transaction": self.transaction_id,
            "text": str(self),
        }


def json_value(value: StoredValue) -> int | float | str | None:
    """Return a value for JSON, which has no bytes: these as hexadecimal digits; and no infinite
    numbers: these as texts."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row that differs from the fold of the log; `expected` or `found` is None if there is
    none."""

    key: tuple[StoredValue, ...]
    expected: State | None
    found: tuple[StoredValue, ...] | None

    @property
    def place(self) -> RowPlace:
        """Return the first transaction of the row: by the log, or by its own claim."""
        if self.expected is not None:
            return self.expected.first
        assert self.found is not None
        partition, transaction_id, *_ = self.found[-len(PLACES) :]
        assert isinstance(partition, int)
        assert isinstance(transaction_id, int)
        return RowPlace(transaction_id, partition)


def explained(
    row: WrongRow,
    table: str,
    keys: Sequence[str],
    measures: Mapping[str, Function],
    history: Iterable[tuple[RowPlace, Sequence[Any]]],
    changed: Sequence[RowPlace] = (),
) -> TableDifference:
    """Return what is wrong with a row, and from which transaction on.

    `history` has the rows of the fold that make up the row, in the order of their places, and
    `changed` those of its transactions that are in blocks which have changed since they were taken
    in.
    """
    key = dict(zip(keys, row.key, strict=True))
    begin = row.place
    if row.expected is None:
        return _whole(table, key, begin, "the log does not give this row, which claims to begin at")
    if row.found is None:
        return _whole(table, key, begin, "missing; the log gives this row from")
    names = [*measures, *PLACES]
    expected = finished(row.expected)
    wrong = {
        name: (ours, theirs)
        for name, ours, theirs in zip(names, expected, row.found, strict=True)
        if not _same(ours, theirs)
    }
    found = {name: theirs for name, (_, theirs) in wrong.items()}
    parted = dict(_partings(list(measures.values()), names, found, history))
    detail = ""
    if changed:
        parted = dict.fromkeys(wrong, changed[0])
        detail = "the log has changed in the blocks named" + (
            "" if len(changed) == 1 else f", where this row has {len(changed)} transactions"
        )
    columns = tuple(
        ColumnDifference(name, ours, theirs, place.partition, place.transaction_id)
        for name, (ours, theirs) in wrong.items()
        for place in [parted.get(name, begin)]
    )
    first = min(parted.get(name, begin) for name in wrong)
    return TableDifference(table, key, columns, first.partition, first.transaction_id, detail)


def _whole(
    table: str, key: Mapping[str, StoredValue], begin: RowPlace, text: str
) -> TableDifference:
    told = f"{text} partition {begin.partition}, transaction {begin.transaction_id}"
    return TableDifference(table, key, (), begin.partition, begin.transaction_id, told)


def differs(expected: State, found: Sequence[StoredValue]) -> bool:
    """Return whether a row of a table differs from the fold of the log."""
    return not all(map(_same, finished(expected), found))


def _same(ours: StoredValue, theirs: StoredValue) -> bool:
    return type(ours) is type(theirs) and ours == theirs


def _partings(
    functions: Sequence[Function],
    names: Sequence[str],
    found: Mapping[str, StoredValue],
    history: Iterable[tuple[RowPlace, Sequence[Any]]],
) -> Iterator[tuple[str, RowPlace]]:
    """Yield for each column in `found` the transaction after which it differs.

    The longest run of the row's transactions, from its first on, that gives the value found ends
    before that one; a column whose value no run gives differs from the row's first transaction on.
    """
    parted: dict[str, RowPlace] = {}
    agreeing: set[str] = set(found)
    state: State | None = None
    for _, rows in groupby(history, key=lambda each: each[0][:2]):
        for place, values in rows:
            new = started(functions, values, place)
            if state is None:
                parted = dict.fromkeys(found, place)
            else:
                parted.update(dict.fromkeys(agreeing, place))
            agreeing = set()
            state = new if state is None else merged(functions, state, new)
        assert state is not None
        now = dict(zip(names, finished(state), strict=True))
        agreeing = {name for name, value in found.items() if _same(now[name], value)}
    yield from parted.items()
