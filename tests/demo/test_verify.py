"""Whether disagreement is found, by value: a small run with one thing changed at a time."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from demo.database import apply_flights, open_database
from demo.flights import CANCELLED, DIVERTED, Flight, transaction_data
from demo.tables import DATABASE, SUMMARIES
from demo.verify import (
    Agreement,
    Event,
    LogAudit,
    MismatchError,
    Tables,
    expect_equal_events,
    expect_equal_figures,
    partition_figures,
    verify,
)
from waltz import (
    ClientId,
    LogReader,
    PartitionId,
    RequestId,
    Transaction,
    TransactionColumns,
    TransactionId,
)
from waltz.types import Generation


def flight(number: int, tail_number: str | None = "N1", delay: int | None = 5) -> Flight:
    return Flight(
        number=number,
        year=2013,
        month=1 + number % 2,
        day=1 + number % 3,
        departure_time=None if delay is None else 600,
        scheduled_departure=555,
        departure_delay=delay,
        arrival_time=None if delay is None else 700,
        scheduled_arrival=655,
        arrival_delay=None if delay is None else 5,
        carrier="UA" if number % 2 else "MQ",
        flight=number,
        tail_number=tail_number,
        origin="EWR",
        destination="IAH",
        air_time=None if delay is None else 60,
        distance=100 * number,
        hour=5 + number % 4,
        minute=55,
        scheduled_at="2013-01-01T10:00:00Z",
    )


FLIGHTS = [
    flight(1),
    flight(2, "N2"),
    flight(3),
    flight(4, None, None),
    flight(5, "N2", -3),
    flight(6, delay=None),
    flight(7, delay=0),
]


def event(transaction_id: int, flight: Flight, leg: int) -> Event:
    return Event(transaction_id, flight.kind, transaction_data(flight, leg))


LOG = [
    # Written by several processes, so not in the order of their numbers.
    [
        event(0, FLIGHTS[2], 1),
        event(1, FLIGHTS[0], 2),
        event(2, FLIGHTS[5], 3),
        event(3, FLIGHTS[6], 4),
    ],
    [event(0, FLIGHTS[1], 1), event(1, FLIGHTS[3], 1), event(2, FLIGHTS[4], 2)],
]


class ListedLog:
    """A log reader over `LOG`."""

    def __init__(self, partitions: Sequence[Sequence[Event]]) -> None:
        self._partitions = partitions
        self.partition_count = len(partitions)

    def high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return TransactionId(len(self._partitions[partition_id]) - 1)

    def read(
        self, partition_id: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[TransactionColumns]:
        for start in range(first, end, 3):
            rows = self._partitions[partition_id][start : min(start + 3, end)]
            yield TransactionColumns(
                first_transaction_id=TransactionId(start),
                request_ids=bytes(16 * len(rows)),
                headers=np.array([row.header for row in rows], np.int32),
                data=[row.data for row in rows],
            )


def transactions(partition_id: int, events: Sequence[Event]) -> list[Transaction]:
    def fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        raise AssertionError("the data is there")

    return [
        Transaction(
            RequestId(ClientId(1), Generation(1), PartitionId(partition_id), number),
            TransactionId(each.transaction_id),
            each.header,
            each.data,
            fetch,
        )
        for number, each in enumerate(events)
    ]


def make_database(path: Path) -> Engine:
    engine = open_database(path)
    with engine.begin() as connection:
        for partition_id, events in enumerate(LOG):
            apply_flights(connection, transactions(partition_id, events[:2]))
            apply_flights(connection, transactions(partition_id, events[2:]))
    return engine


def make_tables(directory: Path) -> None:
    """Write what Spark would: the oracle of the summaries, row by row."""
    events = []
    for partition_id, each in enumerate(LOG):
        for found in each:
            place = {"partition": partition_id, "transaction_id": found.transaction_id}
            events.append(place | {"header": found.header, "check": found.check})
    write(directory, "events", events)
    figures = [partition_figures(each)._asdict() for each in LOG]
    write(directory, "by_partition", [{"partition": p} | each for p, each in enumerate(figures)])
    for name, keys in SUMMARIES.items():
        groups: dict[tuple[object, ...], list[Flight]] = defaultdict(list)
        for item in FLIGHTS:
            groups[tuple(getattr(item, key) for key in keys)].append(item)
        write(
            directory,
            name,
            [
                dict(zip(keys, values, strict=True))
                | {
                    "flights": len(group),
                    "cancelled": sum(item.kind == CANCELLED for item in group),
                    "diverted": sum(item.kind == DIVERTED for item in group),
                    "distance": sum(item.distance for item in group),
                    "departure_delay": [1, 2, 3],
                    "arrival_delay": [1, 2, 3],
                }
                for values, group in groups.items()
            ],
        )
    aircraft: dict[str, list[Flight]] = defaultdict(list)
    for item in FLIGHTS:
        aircraft[item.aircraft].append(item)
    write(
        directory,
        "by_aircraft",
        [
            {
                "aircraft": name,
                "legs": len(group),
                "last_leg": len(group),
                "distance": sum(item.distance for item in group),
            }
            for name, group in aircraft.items()
        ],
    )


def write(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Delays and events go into files, all else into the database, as Spark does it."""
    delays = ("departure_delay", "arrival_delay") if name in SUMMARIES else ()
    if name == "events" or delays:
        columns = (*SUMMARIES[name], *delays) if delays else tuple(rows[0])
        (directory / name).mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([{each: row[each] for each in columns} for row in rows])
        pq.write_table(table, directory / name / "part.parquet")
    if name == "events":
        return
    columns = tuple(each for each in rows[0] if each not in delays)
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        database.execute(f"DROP TABLE IF EXISTS {name}")
        database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        database.executemany(
            f"INSERT INTO {name} VALUES ({', '.join('?' for _ in columns)})",
            [tuple(row[each] for each in columns) for row in rows],
        )


@dataclass
class Sides:
    log: list[list[Event]]
    database: Engine
    tables: Path
    flights: list[Flight]

    def verify(self) -> Agreement:
        log = cast(LogReader, ListedLog(self.log))
        return verify(log, self.database, Tables(self.tables), self.flights)

    def execute(self, statement: str) -> None:
        with self.database.begin() as connection:
            assert connection.execute(text(statement)).rowcount == 1

    def change_table(self, name: str, row: int, **values: object) -> None:
        rows = (
            pq.read_table(self.tables / name).to_pylist()
            if name == "events"
            else Tables(self.tables).rows(name)
        )
        rows[row] |= values
        write(self.tables, name, rows)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    make_tables(tmp_path / "tables")
    database = make_database(tmp_path / "flights.db")
    yield Sides([list(each) for each in LOG], database, tmp_path / "tables", list(FLIGHTS))
    database.dispose()


def test_a_run_that_agrees_is_counted(sides: Sides) -> None:
    assert sides.verify() == Agreement(transactions=7, aircraft=3, summary_rows=19)


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (
            "update flight set distance = 1 where partition_id = 0 and transaction_id = 2",
            r"^partition 0, transaction 2: the database has transaction 2 with check \d+;",
        ),
        (
            "update flight set minute = 1 where partition_id = 1 and transaction_id = 0",
            r"^partition 1, transaction 0: the database has",
        ),
        (
            "update flight set header = 3 where partition_id = 0 and transaction_id = 1",
            r"^partition 0, transaction 1: the database has .* the log has header 1 and \{",
        ),
        (
            "delete from flight where partition_id = 0 and transaction_id = 1",
            r"^partition 0, transaction 1: the database lacks it; the log has header 1",
        ),
        (
            "delete from flight where partition_id = 1 and transaction_id = 2",
            r"^partition 1, transaction 2: the database lacks it",
        ),
        (
            "insert into flight (partition_id, transaction_id, header, distance) select 0, 9, 1, 1",
            r"^partition 0, transaction 9: the database has it twice, or the log lacks it",
        ),
        (
            "update aircraft set last_leg = 3 where aircraft = 'N1'",
            r"^aircraft N1: the database has \(3, 1700\), expected .*last_leg=4",
        ),
        ("delete from aircraft where aircraft = 'N2'", r"^aircraft N2: the database has None"),
    ],
)
def test_a_database_that_differs_is_found(sides: Sides, statement: str, fault: str) -> None:
    sides.execute(statement)
    with pytest.raises(MismatchError, match=fault):
        sides.verify()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda sides: sides.change_table("events", 5, check=1),
            r"^partition 1, transaction 1: Spark's table of events has transaction 1 with check 1;",
        ),
        (
            lambda sides: sides.change_table("by_partition", 0, distance=0),
            r"^partition 0: Spark's table has .*distance=0",
        ),
        (
            lambda sides: sides.change_table("by_carrier", 0, cancelled=7),
            r"^by_carrier \('UA',\): Spark's table has \(4, 7, ",
        ),
        (
            lambda sides: sides.change_table("by_origin_and_hour", 0, hour=23),
            r"^by_origin_and_hour \('EWR', 6\): Spark's table has None, expected \(2,",
        ),
        (
            lambda sides: sides.change_table("by_aircraft", 0, legs=9),
            r"^aircraft N1: Spark's table has None",
        ),
    ],
)
def test_tables_that_differ_are_found(
    sides: Sides, change: Callable[[Sides], None], fault: str
) -> None:
    change(sides)
    with pytest.raises(MismatchError, match=fault):
        sides.verify()


def test_delays_of_other_rows_than_the_summary_has_are_found(sides: Sides) -> None:
    with closing(sqlite3.connect(sides.tables / DATABASE)) as database, database:
        database.execute("DELETE FROM by_month WHERE month = 1")
    with pytest.raises(MismatchError, match=r"^by_month: Spark's table has other keys than its d"):
        sides.verify()


def test_a_flight_that_was_never_written_is_found(sides: Sides) -> None:
    sides.flights.append(flight(8))
    with pytest.raises(MismatchError, match=r"^flight 8 is not in the log"):
        sides.verify()


def audit(*events: Event) -> None:
    judge = LogAudit(FLIGHTS)
    judge.take(0, events)


def test_a_missing_leg_is_found() -> None:
    with pytest.raises(MismatchError, match=r"^partition 0, transaction 1: aircraft N1 has leg 3"):
        audit(event(0, FLIGHTS[0], 1), event(1, FLIGHTS[2], 3))


def test_a_leg_written_twice_is_found() -> None:
    """What would happen if a lock did not hold."""
    with pytest.raises(MismatchError, match=r"transaction 1: aircraft N1 has leg 1 after 1"):
        audit(event(0, FLIGHTS[0], 1), event(1, FLIGHTS[2], 1))


def test_a_flight_written_twice_is_found() -> None:
    with pytest.raises(MismatchError, match=r"transaction 1: flight 1 is there twice"):
        audit(event(0, FLIGHTS[0], 1), event(1, FLIGHTS[0], 2))


def test_a_flight_that_nobody_has_submitted_is_found() -> None:
    with pytest.raises(MismatchError, match=r"flight 8 is there twice or was never sent"):
        audit(event(0, flight(8), 1))


def test_a_gap_between_transactions_is_found() -> None:
    with pytest.raises(MismatchError, match="transaction 2: expected transaction 1"):
        audit(event(0, FLIGHTS[0], 1), event(2, FLIGHTS[2], 2))


def test_data_or_header_other_than_the_flights_is_found() -> None:
    right = event(0, FLIGHTS[0], 1)
    with pytest.raises(MismatchError, match="does not match flight 1"):
        audit(right._replace(data=right.data.replace(b'"EWR"', b'"JFK"')))
    with pytest.raises(MismatchError, match="does not match flight 1"):
        audit(right._replace(header=CANCELLED))


def test_a_check_covers_place_header_and_data() -> None:
    one = event(0, FLIGHTS[0], 1)
    others = [one._replace(transaction_id=1), one._replace(header=2), one._replace(data=b"{}")]
    assert len({one.check, *(other.check for other in others)}) == 4


def test_sums_that_differ_are_shown_side_by_side() -> None:
    figures = partition_figures(LOG[0])
    expect_equal_figures(0, figures, "the copy", figures)
    with pytest.raises(MismatchError, match=r"^partition 0: the copy has .*distance=1,"):
        expect_equal_figures(0, figures, "the copy", figures._replace(distance=1))


def test_a_copy_is_looked_at_row_by_row() -> None:
    checks = [(each.transaction_id, each.check) for each in LOG[0]]
    expect_equal_events(0, LOG[0], "the copy", checks)
    for index in range(len(checks)):
        with pytest.raises(MismatchError, match=rf"transaction {index}: the copy lacks it"):
            expect_equal_events(0, LOG[0], "the copy", checks[:index] + checks[index + 1 :])
