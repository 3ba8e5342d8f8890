"""A definition that changes derives what has changed, and nothing else, on a real cluster."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import waltz
from tests.clusters import running_cluster, wait_until
from tests.shares import one_in
from tests.spark.followed_changes import Mirror
from tests.spark.killed_pipeline import defined as killed_definition
from tests.spark.kills import Pipeline
from tests.spark.test_pipelines_derived import FILE, NO_JSON, move
from waltz.client.transaction import PlainAppend
from waltz.errors import (
    ChangesMissingError,
    ConfigurationError,
    CorruptionError,
    VersionConflictError,
)
from waltz.spark.followed_metrics import LastVerify
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.pipelines.changes import TableChanges
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind, parse_definition
from waltz.spark.pipelines.derived import lag, rebuild, take_in
from waltz.spark.pipelines.last_verify import read_record, write_record
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.proof import verify
from waltz.spark.pipelines.staging import held_staging, is_staged, staging_path
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        yield running.coordinator


class Definition:
    """The text of a definition, to be changed."""

    def __init__(self, cluster: str, directory: Path, kind: str = "sqlite") -> None:
        self._directory = directory
        text = FILE.format(cluster=cluster, undecodable="quarantine")
        self.content: dict[str, Any] = yaml.safe_load(text)
        self.content["target"] = f"{kind}:tables"

    @property
    def tables(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["tables"]
        return found

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["decode"]["fields"]
        return found

    def parsed(self) -> PipelineDefinition:
        text = yaml.safe_dump(self.content, sort_keys=False)
        return parse_definition(text, directory=self._directory)


def rows_of(definition: PipelineDefinition) -> dict[str, int]:
    """The number of rows of each table of a database."""
    with closing(sqlite3.connect(definition.target)) as database:
        names = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'waltz%'"
        ).fetchall()
        return {
            name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for (name,) in names
        }


HEADERS = {"keys": ["header"], "measures": {"transactions": "count(*)"}}


@pytest.mark.parametrize("kind", one_in(3, ["sqlite", "delta", "iceberg"]))
def test_tables_that_come_and_change_are_derived_alone_and_join_the_others(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: TargetKind
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path, kind)
    move(cluster, 30, seed=1)
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        client.append(0, b"no JSON", header=NO_JSON)
    add_to_archive(spark, access, tmp_path / "archive")
    if kind == "sqlite":
        given.content["changes"] = 1000
    take_in(spark, access, given.parsed())
    mirrors = {"balances": Mirror(1), "days": Mirror(1)}
    for name, mirror in mirrors.items():
        assert followed(given.parsed(), name, mirror) == 1
    move(cluster, 6, seed=2)
    given.tables["headers"] = HEADERS
    given.tables["days"]["measures"]["latest"] = "max(at)"
    given.content["archive"] = "archive"
    with pytest.raises(
        ConfigurationError, match=r"^WALTZ-1009 .*headers is not there yet, table days has changed"
    ):
        verify(spark, access, given.parsed())
    write_record(given.parsed().target, LastVerify(1, 31, 0))
    told: list[str] = []
    report = take_in(spark, access, given.parsed(), tell=told.append)
    assert (report.transactions, report.backfilled) == (6, ("headers", "days"))
    assert told[0] == (
        "table headers is not there yet, table days has changed:"
        " reading 31 transactions of the past"
    )
    assert told[-1] == "read 31 of 31 transactions"
    assert read_record(given.parsed().target) is None, "nobody has verified the new table"
    proven = verify(spark, access, given.parsed())
    assert (proven.transactions, proven.undecodable, proven.differences) == (37, 1, ())
    assert not is_staged(given.parsed().target)
    again = take_in(spark, access, given.parsed())
    assert (again.transactions, again.backfilled) == (0, ())
    assert followed(given.parsed(), "balances", mirrors["balances"]) == 1, "its changes go on"
    whole = Mirror(1)
    followed(given.parsed(), "balances", whole)
    assert mirrors["balances"].rows == whole.rows
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*changed"):
        followed(given.parsed(), "days", mirrors["days"])
    assert followed(given.parsed(), "headers", Mirror(1)) == 1


def test_a_run_by_the_former_definition_may_go_on_while_the_past_is_read(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path)
    move(cluster, 4, seed=1)
    former = given.parsed()
    take_in(spark, access, former)
    given.tables["headers"] = HEADERS
    goes_on = iter([True])

    def tell(text: str) -> None:
        if text.startswith("read ") and next(goes_on, False):
            move(cluster, 4, seed=2)
            take_in(spark, access, former)

    report = take_in(spark, access, given.parsed(), tell=tell)
    assert (report.backfilled, report.transactions) == (("headers",), 0)
    assert verify(spark, access, given.parsed()).differences == ()


def test_tables_that_were_half_derived_are_begun_anew_once_the_others_were_put_back(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path)
    move(cluster, 4, seed=1)
    former = given.parsed()
    take_in(spark, access, former)
    backup = former.target.read_bytes()
    move(cluster, 4, seed=2)
    take_in(spark, access, former)
    given.tables["headers"] = HEADERS

    def stop(text: str) -> None:
        if text.startswith("read "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(spark, access, given.parsed(), tell=stop)
    assert is_staged(former.target)
    former.target.write_bytes(backup)
    report = take_in(spark, access, given.parsed())
    assert (report.backfilled, report.transactions) == (("headers",), 4)
    assert verify(spark, access, given.parsed()).differences == ()


def followed(definition: PipelineDefinition, table: str, mirror: Mirror) -> int:
    """Let a copy of a table take what it lacks; return the number of commits."""
    count = 0
    with TableChanges(definition, table) as feed:
        for commit in feed.after(mirror.position):
            mirror.take(commit)
            count += 1
    return count


@pytest.mark.parametrize("kind", one_in(2, ["sqlite", "delta"]))
def test_a_table_that_is_gone_from_the_definition_is_dropped_only_if_it_is_said(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: TargetKind
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path, kind)
    move(cluster, 10, seed=3)
    take_in(spark, access, given.parsed())
    del given.tables["days"]
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*definition: days\. .*--drop days"):
        take_in(spark, access, given.parsed())
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*balances cannot be dropped"):
        take_in(spark, access, given.parsed(), drop=["days", "balances"])
    move(cluster, 2, seed=4)
    report = take_in(spark, access, given.parsed(), drop=["days"])
    assert (report.transactions, report.dropped) == (2, ("days",))
    assert verify(spark, access, given.parsed()).differences == ()
    with open_tables(given.parsed(), create=False) as store:
        assert store.definition() == given.parsed().tables.fingerprint()  # type: ignore[union-attr]


@pytest.mark.long
def test_fields_come_without_another_table_being_read_anew_unless_the_past_contradicts(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path)
    move(cluster, 12, seed=5)
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        client.append(0, b'{"changes": [], "price": "dear"}', header=1)
    take_in(spark, access, given.parsed())
    before = rows_of(given.parsed())
    given.fields["colour"] = "string"
    report = take_in(spark, access, given.parsed())
    assert (report.transactions, report.backfilled) == (0, ())
    given.fields["price"] = "bigint"
    given.tables["prices"] = {"keys": ["header"], "measures": {"price": "max(price)"}}
    with pytest.raises(
        ConfigurationError,
        match=r"^WALTZ-1009 .*partition 0, transaction 6, cannot be decoded any more.*Correct",
    ):
        take_in(spark, access, given.parsed())
    assert rows_of(given.parsed()) == before
    given.fields["price"] = "string"
    assert take_in(spark, access, given.parsed()).backfilled == ("prices",)
    assert verify(spark, access, given.parsed()).differences == ()
    given.fields["at"] = "string"
    given.tables["days"]["keys"]["day"] = "substring(at, 1, 10)"
    report = take_in(spark, access, given.parsed())
    assert report.backfilled == ("balances", "days", "prices"), "each may have used it"
    assert verify(spark, access, given.parsed()).differences == ()
    given.content["decode"]["undecodable"] = "fail"
    assert take_in(spark, access, given.parsed()).backfilled == ()
    given.content["decode"]["undecodable"] = "quarantine"
    take_in(spark, access, given.parsed())
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        client.append(0, b"no JSON", header=NO_JSON)
    take_in(spark, access, given.parsed())
    given.content["decode"]["undecodable"] = "fail"
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*put aside partition 0, .* 7, "):
        take_in(spark, access, given.parsed())


def test_a_rebuild_forgets_tables_that_are_half_derived(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path)
    move(cluster, 6, seed=6)
    take_in(spark, access, given.parsed())
    with closing(sqlite3.connect(given.parsed().target)) as database, database:
        database.execute("UPDATE waltz_blocks SET digest = '7'")
    given.tables["headers"] = HEADERS
    with pytest.raises(CorruptionError, match=r"^WALTZ-2008 partition .*waltz pipeline verify"):
        take_in(spark, access, given.parsed())
    assert is_staged(given.parsed().target)
    rebuild(spark, access, given.parsed())
    assert not is_staged(given.parsed().target)
    assert verify(spark, access, given.parsed()).differences == ()


def test_a_rebuild_that_may_not_replace_the_tables_leaves_them_as_they_were(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, given = LogAccess(cluster), Definition(cluster, tmp_path).parsed()
    move(cluster, 4, seed=1)
    take_in(spark, access, given)
    write_record(given.target, LastVerify(1, 4, 0))
    move(cluster, 4, seed=2)
    with held_staging(given.target), pytest.raises(VersionConflictError, match=r"^WALTZ-2016"):
        rebuild(spark, access, given)
    assert [(each.taken_in, each.logged) for each in lag(access, given)] == [(2, 4)] * 2
    assert read_record(given.target) is not None
    rebuild(spark, access, given)
    assert [each.taken_in for each in lag(access, given)] == [4, 4]
    assert read_record(given.target) is None, "gone before the tables were replaced"


def staged_marks(target: Path) -> int:
    """How many transactions the tables aside have."""
    path = staging_path(target)
    path = path / "waltz.db" if path.is_dir() else path
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            found = database.execute("SELECT sum(next_transaction_id) FROM waltz_marks").fetchone()
        except sqlite3.OperationalError:
            return 0  # it is being made
        return found[0] or 0


def has_come_as_far(target: Path, staged: int) -> bool:
    """Whether the past is read as far, or even to its end: then the tables have joined."""
    return staged_marks(target) >= staged or (staged > 1 and not staging_path(target).exists())


def has_started_again(pipeline: Pipeline, starts: int) -> bool:
    """Whether another driver was started than the first `starts`; starts one if none runs."""
    pipeline.keep_running()
    return pipeline.starts > starts


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    ["sqlite", "delta", "iceberg"],
)
def test_a_run_that_is_killed_while_it_reads_the_past_is_resumed_and_counts_once(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: TargetKind
) -> None:
    """SIGKILL while a driver reads the past, and while the next one reads on or joins tables."""
    access = LogAccess(cluster)
    former, whole = (killed_definition(cluster, tmp_path, kind, each) for each in (["texts"], ()))
    random = Random(8)

    def append(count: int) -> None:
        with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
            for number in range(count):
                data = b"%d" % random.randrange(60)
                client.submit(PlainAppend(number % 2, data, header=number % 5))
            client.flush()

    append(600)
    take_in(spark, access, former)
    pipeline = Pipeline(cluster, tmp_path, "tests.spark.killed_pipeline", kind)
    try:
        for staged in (1, 300):
            come_as_far = partial(has_come_as_far, whole.target, staged)
            wait_until(come_as_far, "the past is not read", 180)
            (driver,) = pipeline.parts("driver")
            pipeline.parts("java")
            starts = pipeline.starts
            os.kill(driver, signal.SIGKILL)
            wait_until(partial(has_started_again, pipeline, starts), "there is no new driver")
            append(50)
            assert sum(each.taken_in for each in lag(access, former)) >= 600
        wait_until(
            lambda: all(each.logged == each.taken_in for each in lag(access, whole)),
            "it has not caught up",
            180,
        )
        wait_until(lambda: not is_staged(whole.target), "the tables did not join", 60)
    finally:
        pipeline.stop()
    assert pipeline.starts == 3
    take_in(spark, access, whole)
    proven = verify(spark, access, whole)
    assert (proven.transactions, proven.differences) == (700, ())
