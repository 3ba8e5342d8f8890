"""Kills the parts of a pipeline of Delta tables at random moments, and compares what came of it.

    python -m tests.spark.table_kills --kills 20 --seed 7

Each round appends to the log, kills the driver, its Java process or a Python worker with SIGKILL
while a batch is taken in, starts the pipeline again once it has ended, and waits until the tables
have all that the log has. Then every row must be what plain Python makes of the log. In the end
`verify` must find the tables equal, and tidying must leave no file that the tables do not name.
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

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.live.journal import read_all
from tests.spark.killed_pipeline import OPTIONS, defined
from tests.spark.kills import CATCH_UP_SECONDS_MAX, Pipeline, kill_in_rounds
from waltz.errors import NotFoundError, VersionConflictError
from waltz.spark import spark_session
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.proof import verify
from waltz.spark.tasks import LogAccess

VICTIMS = ("driver", "java", "worker")
PARTITIONS = 2


class TableRun:
    """One cluster, one pipeline of tables, many kills."""

    def __init__(self, cluster: RunningCluster, directory: Path, seed: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._random = random.Random(seed)
        self._number = 0
        self.pipeline = Pipeline(cluster.coordinator, directory, "tests.spark.killed_pipeline")
        self.kills: Counter[str] = Counter()

    def round(self, client: waltz.WaltzClient, kind: str) -> None:
        """Append, kill while it is taken in, and judge. Raises AssertionError."""
        before = self._marks()
        for _ in range(self._random.randrange(100, 500)):
            self._number += 1
            data = b"%d" % self._random.randrange(60)
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
            with DeltaTables(self._target, create=False) as store:
                found = store.marks() if store._exists("waltz_marks") else {}
                return {int(each): int(mark) for each, mark in found.items()}
        except NotFoundError:
            return {}

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
        assert self._rows("texts", "text", "count", "headers", "latest") == {
            (text, *rest) for text, rest in texts.items()
        }
        assert self._rows("headers", "header", "count", "greatest") == {
            (header, *rest) for header, rest in headers.items()
        }

    def _rows(self, table: str, *columns: str) -> set[tuple[Any, ...]]:
        found = DeltaTable(self._target / table).to_pyarrow_table(columns=list(columns))
        rows = list(zip(*(found.column(each).to_pylist() for each in columns), strict=True))
        assert len(rows) == len(set(rows)), f"a row of {table} is there twice"
        return set(rows)

    def finish(self) -> int:
        """Stop the pipeline, verify and tidy its tables; return how many files were orphans.

        Raises AssertionError: something differs, or is left.
        """
        self.pipeline.stop()
        spark = spark_session("verify", **OPTIONS)
        definition = defined(self._cluster.coordinator, self._directory)
        try:
            proven = verify(spark, LogAccess(self._cluster.coordinator), definition)
        except VersionConflictError as error:  # no batch was begun: all was taken in
            raise AssertionError(error) from error
        finally:
            spark.stop()
        assert (proven.transactions, proven.differences) == (self._number, ())
        orphans = 0
        with DeltaTables(self._target, create=False) as store:
            orphans = sum(self._orphans(each) for each in ("texts", "headers"))
            store.tidy(0, delete=True)
        for each in ("texts", "headers"):
            table = DeltaTable(self._target / each)
            left = {str(path) for path in (self._target / each).glob("waltz_bucket=*/*")}
            assert left == set(table.file_uris()), f"{each} has files that it does not name"
        self.judge()
        return orphans

    def _orphans(self, table: str) -> int:
        """Return how many files no version of a table ever named."""
        path = self._target / table
        last = DeltaTable(path).version()
        named: set[str] = set()
        for version in range(last + 1):
            named.update(DeltaTable(path, version=version).file_uris())
        return len({str(each) for each in path.glob("waltz_bucket=*/*")} - named)


@contextmanager
def started(directory: Path, seed: int) -> Iterator[tuple[TableRun, waltz.WaltzClient]]:
    with running_cluster(directory / "data", "--partitions", str(PARTITIONS)) as cluster:
        run = TableRun(cluster, directory, seed)
        try:
            with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
                yield run, client
        finally:
            run.pipeline.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the parts of a pipeline of tables.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with (
        TemporaryDirectory(prefix="waltz-table-kills-") as directory,
        started(Path(directory), chosen.seed) as (run, client),
    ):
        kill_in_rounds(partial(run.round, client), VICTIMS, chosen.kills, chosen.seed)
        orphans = run.finish()
        print(
            f"seed {chosen.seed}: {dict(run.kills)}, {run.pipeline.starts} starts,"
            f" {orphans} orphans before tidying, all equal"
        )


if __name__ == "__main__":
    main()
