"""Derived tables on a real cluster with Spark: what they are, and that they are proven."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

import waltz
from tests.clusters import running_cluster
from tests.shares import one_in
from tests.spark.duck import opened_duck
from tests.spark.followed_changes import Mirror
from tests.spark.overtaken import OvertakenAccess
from waltz.errors import (
    ChangesMissingError,
    ConfigurationError,
    CorruptionError,
    NotFoundError,
)
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.pipelines.changes import TableChanges
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind, parse_definition
from waltz.spark.pipelines.derived import lag, rebuild, take_in
from waltz.spark.pipelines.proof import verify
from waltz.spark.progress import PartitionLag
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

FILE = """\
pipeline: tables
cluster: {cluster}
target: tables.db
transactionsPerBatch: 16
decode:
  fields: {{changes: "array<array<bigint>>", at: timestamp, note: string}}
  undecodable: {undecodable}
tables:
  balances:
    each: changes
    keys: {{account: "element[0]"}}
    measures: {{balance: "sum(element[1])", moves: count(*), latest: "last(element[1])"}}
  days:
    where: header = 1
    keys: {{day: cast(at as date)}}
    measures: {{transactions: count(*), notes: count(note), first_at: min(at)}}
"""
PARTITIONS = (PartitionId(0), PartitionId(1))
NO_JSON = 9
"""The header of data that cannot be decoded."""

KEYS = (None, 1, 2, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        yield running.coordinator


def defined(cluster: str, directory: Path, undecodable: str = "fail") -> PipelineDefinition:
    text = FILE.format(cluster=cluster, undecodable=undecodable)
    return parse_definition(text, directory=directory)


def move(cluster: str, count: int, seed: int) -> None:
    """Move money between accounts, some of which have no number, in both partitions."""
    random = Random(seed)
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(count):
            changes = [[random.choice(KEYS), random.randint(-9, 9)] for _ in range(2)]
            entry = {"changes": changes, "at": f"2026-11-{random.randint(1, 3):02}T10:00:00Z"}
            if number % 3 == 0:
                entry["note"] = "a note"
            client.append(number % 2, json.dumps(entry).encode(), header=number % 2)


def log_of(cluster: str) -> list[tuple[int, int, int, dict[str, Any]]]:
    """Transaction ID, partition, header and entry of each transaction, in that order."""
    found = []
    with waltz.open_reader(cluster) as log:
        for partition in range(log.partition_count):
            for columns in log.read(partition, 0, log.high_water_mark(partition) + 1):
                for index, data in enumerate(columns.data):
                    place = (columns.first_transaction_id + index, partition)
                    if (header := int(columns.headers[index])) != NO_JSON:
                        found.append((*place, header, json.loads(bytes(data))))
    return sorted(found, key=lambda each: each[:2])


def balances_of(log: Sequence[tuple[int, int, int, dict[str, Any]]]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for _, _, _, entry in log:
        for account, amount in entry["changes"]:
            balance, moves = found.get(account, (0, 0))
            found[account] = (balance + amount, moves + 1)
    return found


def test_what_another_run_takes_in_after_the_log_was_asked_is_not_lost_data(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, definition = LogAccess(cluster), defined(cluster, tmp_path)
    move(cluster, 4, seed=1)
    take_in(spark, access, definition)

    def another_run() -> None:
        move(cluster, 4, seed=2)
        take_in(spark, access, definition)

    def overtaken() -> OvertakenAccess:
        return OvertakenAccess(cluster, meanwhile=[another_run])

    assert take_in(spark, overtaken(), definition).transactions == 0
    assert [(each.taken_in, each.logged) for each in lag(overtaken(), definition)] == [(6, 6)] * 2
    report = verify(spark, overtaken(), definition)
    assert (report.transactions, report.differences) == (16, ())


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute(text).fetchall()


@pytest.mark.long
def test_tables_are_the_fold_of_the_log_however_it_was_taken_in(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    definition = replace(defined(cluster, tmp_path), changes=1000)
    move(cluster, 40, seed=1)
    first = take_in(spark, access, definition)
    assert (first.transactions, first.batches) == (40, 3)
    assert take_in(spark, access, definition).transactions == 0
    move(cluster, 10, seed=2)
    assert lag(access, definition) == [PartitionLag(each, 20, 25) for each in PARTITIONS]
    mirror = Mirror(1)
    assert followed_balances(definition, mirror, cluster) == 1, "the whole table"
    assert take_in(spark, access, definition).transactions == 10
    assert followed_balances(definition, mirror, cluster) == 1
    log = log_of(cluster)
    found = query(definition.target, "SELECT account, balance, moves FROM balances")
    assert {account: rest for account, *rest in found} == {
        account: [*each] for account, each in balances_of(log).items()
    }
    days = [entry["at"][:10] for _, _, header, entry in log if header == 1]
    assert query(definition.target, "SELECT day, transactions, first_at FROM days ORDER BY 1") == [
        (day, days.count(day), f"{day} 10:00:00") for day in sorted(set(days))
    ]
    proven = verify(spark, access, definition)
    assert (proven.transactions, proven.differences) == (50, ())
    with sqlite3.connect(definition.target) as database:
        database.execute("UPDATE balances SET balance = balance + 1 WHERE account = 2")
    assert len(verify(spark, access, definition).differences) == 1
    assert rebuild(spark, access, definition).transactions == 50
    assert verify(spark, access, definition).differences == ()
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*rebuilt"):
        followed_balances(definition, mirror, cluster)
    assert followed_balances(definition, Mirror(1), cluster) == 1


def altered(kind: TargetKind, path: Path) -> None:
    """Add 1 to the balance of account 2, as another program may."""
    if kind == "delta":
        DeltaTable(str(path)).update({"balance": "balance + 1"}, predicate="account = 2")
        return
    with closing(SqlCatalog("waltz", uri=f"sqlite:///{path.parent}/waltz.db")) as catalog:
        table = catalog.load_table("tables.balances")
        rows = table.scan(row_filter="account = 2").to_arrow()
        place = rows.column_names.index("balance")
        more = rows.set_column(place, "balance", pc.add(rows["balance"], 1))
        table.overwrite(more, overwrite_filter="account = 2")


@pytest.mark.parametrize("kind", one_in(2, ["delta", "iceberg"]))
def test_open_tables_are_the_fold_of_the_log_and_can_be_read_without_us(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: TargetKind
) -> None:
    access = LogAccess(cluster)
    text = FILE.format(cluster=cluster, undecodable="quarantine")
    definition = parse_definition(text.replace("tables.db", f"{kind}:tables"), directory=tmp_path)
    path = tmp_path / "tables" / "balances"
    move(cluster, 30, seed=7)
    assert take_in(spark, access, definition).batches == 2
    mirror = Mirror(1)
    assert followed_balances(definition, mirror, cluster) == 1, "the whole table"
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        client.append(0, b"no JSON", header=NO_JSON)
    assert take_in(spark, access, definition).undecodable == 1
    assert lag(access, definition) == [
        PartitionLag(PARTITIONS[0], 16, 16),
        PartitionLag(PARTITIONS[1], 15, 15),
    ]
    proven = verify(spark, access, definition)
    assert (proven.transactions, proven.undecodable, proven.differences) == (31, 1, ())
    move(cluster, 24, seed=8)
    assert take_in(spark, access, definition).batches == 2
    assert followed_balances(definition, mirror, cluster) == 3
    entries = log_of(cluster)
    if kind == "delta":
        files = DeltaTable(str(path)).file_uris()
        found = spark.read.option("basePath", str(path)).parquet(*files)
        rows = found.select("account", "balance", "moves").collect()
        assert {row[0]: (row[1], row[2]) for row in rows} == balances_of(entries)
    with opened_duck() as duck:
        seen = duck.rows(path, ["account", "balance", "moves"])
    assert {account: tuple(rest) for account, *rest in seen} == balances_of(entries)
    altered(kind, path)
    (difference,) = verify(spark, access, definition).differences
    assert (difference.table, difference.key) == ("balances", {"account": 2})
    assert rebuild(spark, access, definition).transactions == 55
    assert verify(spark, access, definition).differences == ()
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*rebuilt"):
        followed_balances(definition, mirror, cluster)


def followed_balances(definition: PipelineDefinition, mirror: Mirror, cluster: str) -> int:
    """Let a copy of the balances take what it lacks; return the number of commits. Raises
    AssertionError: after one of them the copy is not the fold of the log to its marks."""
    log, count = log_of(cluster), 0
    with TableChanges(definition, "balances") as feed:
        columns = [feed.columns.index(each) for each in ("account", "balance", "moves")]
        for commit in feed.after(mirror.position):
            mirror.take(commit)
            reached = {int(each): int(mark) for each, mark in commit.position.marks.items()}
            wanted = balances_of([each for each in log if each[0] < reached.get(each[1], 0)])
            rows = [[row[each] for each in columns] for row in mirror.rows.values()]
            assert {account: tuple(rest) for account, *rest in rows} == wanted
            count += 1
    return count


def test_what_cannot_be_decoded_is_named_or_put_aside(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    move(cluster, 4, seed=3)
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for data in (b"no JSON", b"", b"[1]", b'{"changes": 7}'):
            client.append(1, data, header=NO_JSON)
    access = LogAccess(cluster)
    failing = defined(cluster, tmp_path)
    with pytest.raises(
        CorruptionError,
        match=r"^WALTZ-2014 partition 1, transaction 2, and 3 more, header 9: the data is b'no JS",
    ):
        take_in(spark, access, failing)
    assert query(failing.target, "SELECT * FROM waltz_marks") == []
    (tmp_path / "aside").mkdir()
    aside = defined(cluster, tmp_path / "aside", "quarantine")
    report = take_in(spark, access, aside)
    assert (report.transactions, report.undecodable) == (8, 4)
    assert query(aside.target, "SELECT * FROM waltz_undecodable") == [
        (1, 2, 9, b"no JSON"),
        (1, 3, 9, b""),
        (1, 4, 9, b"[1]"),
        (1, 5, 9, b'{"changes": 7}'),
    ]
    assert verify(spark, access, aside).differences == ()


@pytest.mark.long
def test_old_transactions_may_come_from_an_archive(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    move(cluster, 12, seed=4)
    add_to_archive(spark, access, tmp_path / "archive")
    move(cluster, 6, seed=5)
    text = FILE.format(cluster=cluster, undecodable="fail") + "archive: archive\n"
    definition = parse_definition(text, directory=tmp_path)
    assert take_in(spark, access, definition).transactions == 18
    found = query(definition.target, "SELECT account, balance, moves FROM balances")
    assert {row[0]: row[1:] for row in found} == balances_of(log_of(cluster))


def test_mistakes_are_named_before_anything_is_read(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    text = FILE.format(cluster=cluster, undecodable="fail")
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 there is no database .*run the pipeline"):
        lag(access, parse_definition(text, directory=tmp_path))
    for old, new, fault in (
        ("note: string", "note: strong", r"decode: field note is 'strong'; expected"),
        ("element[0]", "nobody", r"table balances: .*nobody"),
        ("count(note)", "sum(note)", r"table days: notes is double; expected numbers, texts"),
        ("count(note)", "max(changes)", r"table days: notes is array<array<bigint>>; expected"),
        ("cast(at as date)", "cast(header as double)", r"table days: day is double; expected"),
    ):
        with pytest.raises(ConfigurationError, match=rf"^WALTZ-1007 {fault}"):
            take_in(spark, access, parse_definition(text.replace(old, new), directory=tmp_path))
    take_in(spark, access, parse_definition(text, directory=tmp_path))
    changed = parse_definition(text.replace("count(note)", "max(note)"), directory=tmp_path)
    assert take_in(spark, access, changed).backfilled == ("days",)
    assert verify(spark, access, changed).differences == ()
