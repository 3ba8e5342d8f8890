"""Checks that everything agrees: the source, the log, the database and Spark's tables, to the last
row.

Each side is read in its own way: the file of flights, a log reader, SQL rows encoded again, and
what Spark computed. The log is compared with each of the others. Run as `python -m demo.verify`;
the exit code is 1 when something differs.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow.compute as pc
import pyarrow.dataset as ds
from sqlalchemy import Engine

from demo.database import aircraft_rows, flight_rows, open_database, summary_rows
from demo.flights import Flight, flights_file, read_flights, transaction_data
from demo.tables import DATABASE, SUMMARIES
from waltz import LogReader, PartitionId, TransactionId, open_reader

DATA_SHOWN: Final = 400
"""Characters of a transaction's data in a message."""


class MismatchError(Exception):
    """Two sides differ; the text names the first transaction, or row, in which they do."""


class Event(NamedTuple):
    """A transaction of one partition, as some side has it."""

    transaction_id: int
    header: int
    data: bytes

    @property
    def check(self) -> int:
        return crc32(self.data, crc32(f"{self.transaction_id}:{self.header}:".encode()))


class PartitionFigures(NamedTuple):
    """The sums of a partition; `digest` is the sum of the checks of all its transactions."""

    transactions: int
    last_transaction_id: int
    digest: int
    distance: int
    departure_delay: int


class Aircraft(NamedTuple):
    last_leg: int
    distance: int


Check = tuple[int, int]
"""Transaction ID and check."""


def partition_figures(events: Iterable[Event]) -> PartitionFigures:
    count = digest = distance = delay = 0
    last = -1
    for each in events:
        flight = json.loads(each.data)
        count += 1
        last = max(last, each.transaction_id)
        digest += each.check
        distance += flight["distance"]
        delay += flight["departure_delay"] or 0
    return PartitionFigures(count, last, digest, distance, delay)


class LogAudit:
    """Checks what must hold of the log alone, and of the log and its source.

    IDs are dense. Legs of an aircraft follow one another from 1, which is what its lock is for.
    Every flight is there once, with the data that was to be written.
    """

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._flights = flights
        self._missing = bytearray(b"\1" * len(flights))
        self.aircraft: dict[str, Aircraft] = {}

    def take(self, partition_id: int, events: Iterable[Event]) -> None:
        """Judge a whole partition, in its order. Raises MismatchError."""
        for expected_id, event in enumerate(events):
            where = f"partition {partition_id}, transaction {event.transaction_id}"
            if event.transaction_id != expected_id:
                raise MismatchError(f"{where}: expected transaction {expected_id}")
            content = json.loads(event.data)
            number, leg = content["number"], content["leg"]
            if not 1 <= number <= len(self._flights) or not self._missing[number - 1]:
                raise MismatchError(f"{where}: flight {number} is there twice or was never sent")
            self._missing[number - 1] = 0
            flight = self._flights[number - 1]
            if (event.header, event.data) != (flight.kind, transaction_data(flight, leg)):
                raise MismatchError(f"{where}: {_shown(event)} does not match flight {number}")
            before = self.aircraft.get(flight.aircraft, Aircraft(0, 0))
            if leg != before.last_leg + 1:
                raise MismatchError(
                    f"{where}: aircraft {flight.aircraft} has leg {leg} after {before.last_leg}"
                )
            self.aircraft[flight.aircraft] = Aircraft(leg, before.distance + flight.distance)

    def finish(self) -> None:
        """Raise MismatchError if a flight is not in the log."""
        index = self._missing.find(1)
        if index >= 0:
            raise MismatchError(f"flight {index + 1} is not in the log")


def expect_equal_events(
    partition_id: int, log: Sequence[Event], side: str, checks: Iterable[Check]
) -> None:
    """Raise MismatchError if `side`, whose transactions have `checks`, differs from `log`.

    Both are in the order of transaction IDs.
    """
    for event, found in zip_longest(log, checks):
        if event is None:
            raise MismatchError(
                f"partition {partition_id}, transaction {found[0]}: {side} has it twice, or the log"
                " lacks it"
            )
        if found is None or found[0] > event.transaction_id:
            raise MismatchError(
                f"partition {partition_id}, transaction {event.transaction_id}: {side} lacks it;"
                f" the log has {_shown(event)}"
            )
        if found != (event.transaction_id, event.check):
            raise MismatchError(
                f"partition {partition_id}, transaction {event.transaction_id}: {side} has"
                f" transaction {found[0]} with check {found[1]}; the log has {_shown(event)} with"
                f" check {event.check}"
            )


def expect_equal_figures(
    partition_id: int, log: PartitionFigures, side: str, figures: PartitionFigures
) -> None:
    """Raise MismatchError if the sums of a partition in `side` differ from those of `log`."""
    if figures != log:
        raise MismatchError(f"partition {partition_id}: {side} has {figures}, the log {log}")


def expect_equal_rows(what: str, log: dict[Any, Any], side: str, other: dict[Any, Any]) -> None:
    """Raise MismatchError for the first row, by key, that differs in `side`."""
    for key in sorted(log.keys() | other.keys()):
        if log.get(key) != other.get(key):
            raise MismatchError(
                f"{what} {key}: {side} has {other.get(key)}, expected {log.get(key)}"
            )


def _shown(event: Event) -> str:
    return f"header {event.header} and {event.data.decode(errors='replace')[:DATA_SHOWN]}"


def log_events(log: LogReader, partition_id: int) -> Iterator[Event]:
    """Yield all that is committed in a partition."""
    partition = PartitionId(partition_id)
    end = TransactionId(log.high_water_mark(partition) + 1)
    for columns in log.read(partition, TransactionId(0), end):
        first = columns.first_transaction_id
        rows = zip(columns.headers.tolist(), columns.data, strict=True)
        for transaction_id, (header, data) in enumerate(rows, first):
            yield Event(transaction_id, header, data)


class Tables:
    """Spark's tables, read without Spark."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table, those of a summary with their delays.

        Raises MismatchError: a summary has other keys than its delays.
        """
        with closing(sqlite3.connect(self._directory / DATABASE)) as database:
            database.row_factory = sqlite3.Row
            rows = [dict(row) for row in database.execute(f"SELECT * FROM {name} ORDER BY rowid")]
        if name not in SUMMARIES:
            return rows

        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            return tuple(row[each] for each in SUMMARIES[name])

        delays = {
            key(row): row for row in ds.dataset(self._directory / name).to_table().to_pylist()
        }
        if delays.keys() != set(map(key, rows)):
            raise MismatchError(f"{name}: Spark's table has other keys than its delays")
        return [row | delays[key(row)] for row in rows]

    def partition_figures(self) -> dict[int, PartitionFigures]:
        return {
            row["partition"]: PartitionFigures(*(row[each] for each in PartitionFigures._fields))
            for row in self.rows("by_partition")
        }

    def checks(self, partition_id: int) -> Iterator[Check]:
        table = ds.dataset(self._directory / "events").to_table(
            ["transaction_id", "check"], filter=pc.field("partition") == partition_id
        )
        ordered = table.sort_by("transaction_id")
        yield from zip(
            ordered["transaction_id"].to_pylist(), ordered["check"].to_pylist(), strict=True
        )


class Agreement(NamedTuple):
    """The number of items that were compared one by one, and agree on all sides."""

    transactions: int
    aircraft: int
    summary_rows: int


def verify(
    log: LogReader, database: Engine, tables: Tables, flights: Sequence[Flight]
) -> Agreement:
    """Return the figures on which all sides agree. Raises MismatchError."""
    audit = LogAudit(flights)
    spark_figures = tables.partition_figures()
    nothing = PartitionFigures(0, -1, 0, 0, 0)
    count = 0
    for partition_id in range(log.partition_count):
        events = list(log_events(log, partition_id))
        audit.take(partition_id, events)
        applied = (Event(*row) for row in flight_rows(database, partition_id))
        for side, checks in (
            ("the database", ((each.transaction_id, each.check) for each in applied)),
            ("Spark's table of events", tables.checks(partition_id)),
        ):
            expect_equal_events(partition_id, events, side, checks)
        expect_equal_figures(
            partition_id,
            partition_figures(events),
            "Spark's table",
            spark_figures.get(partition_id, nothing),
        )
        count += len(events)
    audit.finish()
    expect_equal_rows("aircraft", audit.aircraft, "the database", aircraft_rows(database))
    by_aircraft = {
        row["aircraft"]: (row["last_leg"], row["distance"])
        for row in tables.rows("by_aircraft")
        if row["legs"] == row["last_leg"]
    }
    expect_equal_rows("aircraft", audit.aircraft, "Spark's table", by_aircraft)
    summary_count = 0
    for name, keys in SUMMARIES.items():
        sums = ("flights", "cancelled", "diverted", "distance")
        asked = {row[: len(keys)]: row[len(keys) :] for row in summary_rows(database, keys)}
        made = {
            tuple(row[key] for key in keys): tuple(row[key] for key in sums)
            for row in tables.rows(name)
        }
        expect_equal_rows(name, asked, "Spark's table", made)
        summary_count += len(asked)
    return Agreement(count, len(audit.aircraft), summary_count)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m demo.verify", description=__doc__)
    arguments.add_argument("--cluster", required=True, help="the coordinator's host:port")
    arguments.add_argument("--database", required=True, type=Path)
    arguments.add_argument("--tables", required=True, type=Path)
    arguments.add_argument("--limit", type=int, help="flights that were submitted; default: all")
    given = arguments.parse_args()
    flights = list(read_flights(flights_file(), limit=given.limit))
    with open_reader(given.cluster) as log:
        try:
            agreed = verify(log, open_database(given.database), Tables(given.tables), flights)
        except MismatchError as error:
            print(f"mismatch: {error}", file=sys.stderr)
            return 1
    print(json.dumps(agreed._asdict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
