"""Kills the parts of a pipeline of tables at random moments, and compares what came of it.

    python -m tests.spark.table_kills --format iceberg --kills 20 --seed 7

Each round appends to the log, kills the driver, its Java process or a Python worker with SIGKILL
while a batch is taken in, starts the pipeline again once it has ended, and waits until the tables
have all that the log has. Then every row that DuckDB reads must be what plain Python makes of the
log, and so must a copy of a table that takes its changes only. In the end `verify` must find the
tables equal, and tidying must leave no file that the tables do not name.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.live.journal import read_all
from tests.spark.duck import Duck, opened_duck
from tests.spark.followed_changes import Mirror
from tests.spark.killed_pipeline import BUCKETS, OPTIONS, defined
from tests.spark.kills import CATCH_UP_SECONDS_MAX, Pipeline, kill_in_rounds
from waltz.errors import NotFoundError, VersionConflictError
from waltz.spark import spark_session
from waltz.spark.pipelines.changes import TableChanges
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.proof import verify
from waltz.spark.tasks import LogAccess

VICTIMS = ("driver", "java", "worker")
PARTITIONS = 2
TEXTS = 60
"""Texts that come again and again, in every other round."""


class TableRun:
    """One cluster, one pipeline of tables of one format, many kills."""

    def __init__(
        self, cluster: RunningCluster, directory: Path, seed: int, kind: str, duck: Duck
    ) -> None:
        self._kind = kind
        self._duck = duck
        self._cluster = cluster
        self._directory = directory
        self._random = random.Random(seed)
        self._number = 0
        self.pipeline = Pipeline(
            cluster.coordinator, directory, "tests.spark.killed_pipeline", kind
        )
        self.kills: Counter[str] = Counter()
        self._mirror = Mirror(1)
        self.followed = 0

    def round(self, client: waltz.WaltzClient, kind: str) -> None:
        """Append, kill while it is taken in, and judge. Raises AssertionError."""
        before = self._marks()
        are_new = self._random.random() < 0.5  # files of other texts stay as they are then
        for _ in range(self._random.randrange(100, 500)):
            self._number += 1
            text = TEXTS + self._number if are_new else self._random.randrange(TEXTS)
            data = b"%d" % text
            client.append(self._number % PARTITIONS, data, header=self._number % 5)
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while not self.pipeline.parts("worker") and self._marks() == before:
            assert time.monotonic() < deadline, f"nothing is done; see {self._directory}"
            self.pipeline.keep_running()
            time.sleep(0.05)
        time.sleep(self._random.uniform(0.0, 2.0))
        while not self._kill(kind):
            assert time.monotonic() < deadline, f"no {kind} to kill"
            self.pipeline.keep_running()
            time.sleep(0.05)
        while self._marks() != self._ends():
            assert time.monotonic() < deadline, f"not caught up; see {self._directory}"
            self.pipeline.keep_running()
            time.sleep(0.2)
        self.judge()

    def _kill(self, kind: str) -> bool:
        found = self.pipeline.parts(kind)
        if not found:
            return False
        try:
            os.kill(self._random.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[kind] += 1
        return True

    @property
    def _target(self) -> Path:
        return self._directory / "tables"

    def _marks(self) -> dict[int, int]:
        try:
            with self._opened() as store:
                found = store.marks() if store._exists("waltz_marks") else {}
                return {int(each): int(mark) for each, mark in found.items()}
        except NotFoundError:
            return {}

    def _opened(self) -> LakeTables[Any, Any]:
        definition = defined(self._cluster.coordinator, self._directory, self._kind)
        store = open_tables(definition, create=False)
        assert isinstance(store, LakeTables)
        return store

    def _ends(self) -> dict[int, int]:
        with waltz.open_reader(self._cluster.coordinator) as log:
            marks = {each: log.high_water_mark(each) + 1 for each in range(PARTITIONS)}
        return {each: end for each, end in marks.items() if end}

    def judge(self) -> None:
        """Compare every row of the tables with the log. Raises AssertionError."""
        with waltz.open_reader(self._cluster.coordinator) as log:
            rows = sorted(
                (int(each.transaction_id), partition, each.header, each.data.decode())
                for partition in range(PARTITIONS)
                for each in read_all(log, partition)
            )
        texts: dict[str, tuple[int, int, int]] = {}
        headers: dict[int, tuple[int, str]] = {}
        for _, _, header, text in rows:
            count, total, _ = texts.get(text, (0, 0, 0))
            texts[text] = count + 1, total + header, header
            number, greatest = headers.get(header, (0, ""))
            headers[header] = number + 1, max(greatest, text)
        wanted = {(text, *rest) for text, rest in texts.items()}
        assert self._rows("texts", "text", "count", "headers", "latest") == wanted
        definition = defined(self._cluster.coordinator, self._directory, self._kind)
        with TableChanges(definition, "texts") as feed:
            for commit in feed.after(self._mirror.position):
                self._mirror.take(commit)
                self.followed += 1
        assert {row[:4] for row in self._mirror.rows.values()} == wanted, "by the changes alone"
        assert self._rows("headers", "header", "count", "greatest") == {
            (header, *rest) for header, rest in headers.items()
        }

    def _rows(self, table: str, *columns: str) -> set[tuple[Any, ...]]:
        rows = self._duck.rows(self._target / table, columns)
        assert len(rows) == len(set(rows)), f"a row of {table} is there twice"
        return set(rows)

    def finish(self) -> int:
        """Stop the pipeline, verify and tidy its tables; return how many files were orphans.

        Raises AssertionError: something differs, or is left.
        """
        self.pipeline.stop()
        spark = spark_session("verify", **OPTIONS)
        definition = defined(self._cluster.coordinator, self._directory, self._kind)
        try:
            proven = verify(spark, LogAccess(self._cluster.coordinator), definition)
        except VersionConflictError as error:  # no batch was begun: all was taken in
            raise AssertionError(error) from error
        finally:
            spark.stop()
        assert (proven.transactions, proven.differences) == (self._number, ())
        named = NAMED[self._kind]
        versions = named(self._target / "texts")
        most = max(sum("waltz_bucket=" in file for file in each) for each in versions)
        assert most > BUCKETS, "a bucket had several files"
        paths = [self._target / each for each in ("texts", "headers")]
        orphans = sum(len(_files_in(each) - set().union(*named(each))) for each in paths)
        with self._opened() as store:
            store.tidy(0, delete=True)
        for each in paths:
            assert _files_in(each) == named(each)[-1], f"{each} has files that it does not name"
        self.judge()
        return orphans


def _files_in(table: Path) -> set[str]:
    """Return the files of a table except its log, or metadata in JSON and hints."""
    data = {str(each) for each in table.rglob("waltz_bucket=*/*")}
    return data | {str(each) for each in table.glob("metadata/*.avro")}


def _named_by_delta(table: Path) -> list[set[str]]:
    """Return the files that each version names, the present one last."""
    versions = range(DeltaTable(table).version() + 1)
    return [set(DeltaTable(table, version=each).file_uris()) for each in versions]


def _named_by_iceberg(table: Path) -> list[set[str]]:
    """Return the files that each snapshot names, the present one last."""
    opened = StaticTable.from_metadata(f"file://{table}")
    found = []
    for snapshot in opened.snapshots():
        tasks = opened.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        named = {snapshot.manifest_list, *(each.file.file_path for each in tasks)}
        named.update(each.manifest_path for each in snapshot.manifests(opened.io))
        found.append({each.removeprefix("file://") for each in named})
    return found


NAMED = {"delta": _named_by_delta, "iceberg": _named_by_iceberg}


@contextmanager
def started(directory: Path, seed: int, kind: str) -> Iterator[tuple[TableRun, waltz.WaltzClient]]:
    with (
        running_cluster(directory / "data", "--partitions", str(PARTITIONS)) as cluster,
        opened_duck() as duck,
    ):
        run = TableRun(cluster, directory, seed, kind, duck)
        try:
            with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
                yield run, client
        finally:
            run.pipeline.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the parts of a pipeline of tables.")
    parser.add_argument("--format", choices=sorted(NAMED), default="delta")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with (
        TemporaryDirectory(prefix="waltz-table-kills-") as directory,
        started(Path(directory), chosen.seed, chosen.format) as (run, client),
    ):
        kill_in_rounds(partial(run.round, client), VICTIMS, chosen.kills, chosen.seed)
        orphans = run.finish()
        print(
            f"{chosen.format}, seed {chosen.seed}: {dict(run.kills)}, {run.pipeline.starts} starts,"
            f" {orphans} orphans before tidying, {run.followed} commits followed, all equal"
        )


if __name__ == "__main__":
    main()
