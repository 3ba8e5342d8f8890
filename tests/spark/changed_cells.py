"""Changes single cells of derived tables and asks `verify` which transaction they part from.

    python -m tests.spark.changed_cells --changes 200 --seed 7

Cells of every table are changed, of what was put aside, of the marks and of the digests. The right
transaction follows from the log alone, by trying every prefix of it: nothing of the product is used
for that. Prints one line of JSON; ends with 1 unless every change was named rightly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import waltz
from tests.spark.proofs import proof_ground
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.proof import ProofReport, verify
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK: Final = 16
"""Transactions of a block here, so that a short log has several."""

FILE: Final = """\
pipeline: tables
cluster: {cluster}
target: tables.db
transactionsPerBatch: 23
decode:
  fields: {{changes: "array<array<bigint>>", at: timestamp, note: string, price: double}}
  undecodable: quarantine
tables:
  balances:
    each: changes
    keys: {{account: "element[0]"}}
    measures:
      balance: sum(element[1])
      moves: count(*)
      opened: first(element[1])
      latest: last(element[1])
      largest: max(element[1])
  days:
    where: header = 1
    keys: {{day: cast(at as date), noted: note is not null}}
    measures:
      transactions: count(*)
      notes: count_if(note = 'b')
      since: min(at)
      word: max(note)
  headers:
    keys: [header]
    measures: {{cheapest: min(price), last_price: last(price), total: sum(transaction_id)}}
"""
OWN_TABLES: Final = ("balances", "days", "headers")
BESIDE: Final = ("waltz_undecodable", "waltz_marks", "waltz_blocks")

Place = tuple[int, int]
"""Partition and transaction."""


def write_log(cluster: str, count: int, random: Random) -> None:
    """Append transactions to partitions 0 and 1, a few of which are no JSON."""
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(count):
            entry = {
                "changes": [
                    [random.choice([None, 1, 2, 3, 4]), random.randint(-9, 9)]
                    for _ in range(random.randint(0, 3))
                ],
                "at": f"2026-11-{random.randint(1, 3):02}T10:{random.randint(0, 59):02}:00.25Z",
                "price": random.choice([None, 0.5, -1.25, 7.0]),
            }
            if random.random() < 0.5:
                entry["note"] = random.choice("abc")
            data = json.dumps(entry).encode()
            if random.random() < 0.08:
                data = b"no JSON %d" % number
            client.append(random.randrange(2), data, header=random.randint(0, 2))


@dataclass(frozen=True)
class Transaction:
    transaction_id: int
    partition: int
    header: int
    entry: dict[str, Any] | None

    @property
    def place(self) -> Place:
        return self.partition, self.transaction_id


def read_all(cluster: str) -> list[Transaction]:
    """Return the log in the order in which `first` and `last` go."""
    found = []
    with waltz.open_reader(cluster) as log:
        for partition in range(log.partition_count):
            for columns in log.read(partition, 0, log.high_water_mark(partition) + 1):
                for index, data in enumerate(columns.data):
                    text = bytes(data)
                    entry = None if text.startswith(b"no") else json.loads(text)
                    place = columns.first_transaction_id + index, partition
                    found.append(Transaction(*place, int(columns.headers[index]), entry))
    return sorted(found, key=lambda each: (each.transaction_id, each.partition))


def rows_of(table: str, transaction: Transaction) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Yield keys and what the measures are of, for each row that a transaction adds."""
    entry = transaction.entry
    if entry is None:
        return
    if table == "balances":
        for account, amount in entry["changes"]:
            yield (account,), [amount] * 5
    elif table == "days" and transaction.header == 1:
        note = entry.get("note")
        at = entry["at"].replace("T", " ").removesuffix("Z")
        yield (at[:10], int(note is not None)), [1, note == "b", at, note]
    elif table == "headers":
        price = entry["price"]
        yield (transaction.header,), [price, price, transaction.transaction_id]


def _some(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def of(values: list[Any]) -> Any:
        known = [each for each in values if each is not None]
        return function(known) if known else None

    return of


MEASURES: Final[dict[str, dict[str, Callable[[list[Any]], Any]]]] = {
    "balances": {
        "balance": _some(sum),
        "moves": len,
        "opened": lambda values: values[0],
        "latest": lambda values: values[-1],
        "largest": _some(max),
    },
    "days": {"transactions": len, "notes": sum, "since": min, "word": _some(max)},
    "headers": {
        "cheapest": _some(min),
        "last_price": lambda values: values[-1],
        "total": _some(sum),
    },
}
"""What each measure is, of all values in their order."""


def column_after(table: str, column: str, made_of: Sequence[tuple[Transaction, list[Any]]]) -> Any:
    """Return a column of the row that these rows of the fold make up."""
    if column.endswith("_partition"):
        return made_of[0 if column.startswith("first") else -1][0].partition
    if column.endswith("_transaction_id"):
        return made_of[0 if column.startswith("first") else -1][0].transaction_id
    number = list(MEASURES[table]).index(column)
    return MEASURES[table][column]([values[number] for _, values in made_of])


def right_place(
    log: Sequence[Transaction], table: str, key: tuple[Any, ...], column: str, found: Any
) -> Place:
    """Return after which transaction a cell parts: by trying every prefix of the row's own."""
    made_of = [
        (transaction, values)
        for transaction in log
        for row, values in rows_of(table, transaction)
        if row == key
    ]
    places = list(dict.fromkeys(transaction.place for transaction, _ in made_of))
    right = places[0]
    if column in dict(key_columns(table)):
        return right
    for index, place in enumerate(places[:-1]):
        prefix = [each for each in made_of if each[0].place in places[: index + 1]]
        if column_after(table, column, prefix) == found:
            right = places[places.index(place) + 1]
    return right


def key_columns(table: str) -> list[tuple[str, int]]:
    names = {"balances": ["account"], "days": ["day", "noted"], "headers": ["header"]}[table]
    return [(name, number) for number, name in enumerate(names)]


@dataclass(frozen=True)
class Change:
    table: str
    column: str
    before: dict[str, Any]
    after: Any


def other_value(value: Any, kind: str, random: Random) -> Any:
    """Return another value of a column."""
    if value is None or random.random() < 0.1:
        value = {"INTEGER": 0, "REAL": 0.0, "TEXT": "", "BLOB": b""}[kind]
        return value if random.random() < 0.5 else None
    if isinstance(value, int):
        return random.choice([value + random.choice([-1, 1, 5, 1000]), random.randint(-20, 40)])
    if isinstance(value, float):
        return value + random.choice([-1.0, 0.25, 7.5])
    if isinstance(value, bytes):
        return value + b"!"
    return random.choice([value[:-1] + "~", value + "0", "b"])


def change_one_cell(path: Path, random: Random) -> Change:
    """Change one cell of the database to another value that its table takes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.row_factory = sqlite3.Row
        while True:
            table = random.choice(OWN_TABLES + BESIDE)
            columns = list(database.execute(f"PRAGMA table_info({table})"))
            rows = list(database.execute(f"SELECT rowid AS waltz_rowid, * FROM {table}"))
            row = dict(random.choice(rows))
            column = random.choice(columns)
            after = other_value(row[column["name"]], column["type"], random)
            if after == row[column["name"]]:
                continue
            if table == "waltz_blocks" and column["name"] == "digest":
                after = f"{random.getrandbits(64):x}"
            try:
                database.execute(
                    f"UPDATE {table} SET {column['name']} = ? WHERE rowid = ?",
                    (after, row.pop("waltz_rowid")),
                )
            except sqlite3.IntegrityError:
                continue  # there is such a row already, or the column must have a value
            return Change(table, column["name"], row, after)


def right_place_of(log: Sequence[Transaction], change: Change) -> Place:
    row = change.before
    if change.table in OWN_TABLES:
        key = tuple(row[name] for name, _ in key_columns(change.table))
        return right_place(log, change.table, key, change.column, change.after)
    if change.table == "waltz_undecodable":
        return row["partition"], row["transaction_id"]
    if change.table == "waltz_blocks":
        return row["partition"], row["block"] * BLOCK
    mark = row["next_transaction_id"] if change.column == "partition" else change.after
    end = row["next_transaction_id"]
    return row["partition"], 0 if change.column == "partition" else min(mark, end)


def expected_columns(change: Change) -> set[str]:
    """Return which columns must be named; none where the row is another one by the change."""
    keys = {
        "waltz_undecodable": {"partition", "transaction_id"},
        "waltz_blocks": {"partition", "block"},
        "waltz_marks": set(),
    }
    if change.table in OWN_TABLES:
        keys[change.table] = {name for name, _ in key_columns(change.table)}
    return set() if change.column in keys[change.table] else {change.column}


def fault_of(log: Sequence[Transaction], change: Change, report: ProofReport) -> str | None:
    """Return what is wrong with what `verify` said of a change, if anything is."""
    right = right_place_of(log, change)
    if not report.differences:
        return f"{change}: equal"
    if {each.table for each in report.differences} != {change.table}:
        return f"{change}: also {[str(each) for each in report.differences]}"
    for each in report.differences:
        named = {column.name for column in each.columns}
        if (each.partition_id, each.transaction_id) == right:
            wanted = expected_columns(change)
            if change.table == "waltz_marks" or named == wanted:
                return None
    return f"{change}: expected {right}, told {[str(each) for each in report.differences]}"


def prepared(
    spark: SparkSession, cluster: str, directory: Path, random: Random
) -> tuple[PipelineDefinition, list[Transaction]]:
    """Write a log and derive its tables."""
    write_log(cluster, 90, random)
    definition = parse_definition(FILE.format(cluster=cluster), directory=directory)
    take_in(spark, LogAccess(cluster), definition)
    return definition, read_all(cluster)


def faults_of_changes(
    spark: SparkSession, cluster: str, directory: Path, count: int, seed: int
) -> list[str]:
    """Make `count` changes, each of the whole tables, and return what was not named rightly."""
    random = Random(seed)
    faults = []
    with (
        patch("waltz.spark.pipelines.derived.BLOCK_TRANSACTIONS", BLOCK),
        patch("waltz.spark.pipelines.proof.BLOCK_TRANSACTIONS", BLOCK),
        patch("waltz.spark.pipelines.extent.BLOCK_TRANSACTIONS", BLOCK),
    ):
        definition, log = prepared(spark, cluster, directory, random)
        access = LogAccess(cluster)
        assert verify(spark, access, definition).differences == ()
        whole = directory / "whole.db"
        with closing(sqlite3.connect(definition.target)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(definition.target, whole)
        for number in range(count):
            for left in directory.glob("tables.db*"):
                left.unlink()
            shutil.copy(whole, definition.target)
            change = change_one_cell(definition.target, random)
            fault = fault_of(log, change, verify(spark, access, definition))
            if fault is not None:
                faults.append(f"change {number}: {fault}")
                print(faults[-1], file=sys.stderr)
    return faults


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.spark.changed_cells")
    arguments.add_argument("--changes", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=7)
    given = arguments.parse_args()
    with proof_ground("changed cells") as ground:
        faults = faults_of_changes(*ground, given.changes, given.seed)
    print(json.dumps({"changes": given.changes, "seed": given.seed, "not named": len(faults)}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
