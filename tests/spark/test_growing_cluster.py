"""A cluster gets more partitions: streams, archives, tables and the sink take them up."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waltz
from tests.clusters import run_waltz, running_cluster, wait_until
from tests.spark.listed_log import ListedLog
from tests.spark.test_sink import InMemoryAccess, batch_of, identity, log_of
from tests.spark.test_stream import ALL, at, data_of, stream
from waltz.spark.pipelines.archiving import add_to_archive, archive_lag, verify_archive
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.derived import lag, take_in
from waltz.spark.pipelines.proof import verify
from waltz.spark.progress import PartitionLag
from waltz.spark.sink import TaskRows, write_rows
from waltz.spark.tasks import LogAccess
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class GrowingLog(ListedLog):
    """A log to which partitions are added."""

    def add(self, *partitions: list[bytes]) -> None:
        self._partitions = (*self._partitions, *partitions)
        self.partition_count = len(self._partitions)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_stream_takes_new_partitions_up_from_their_first_transaction(starting: str) -> None:
    """F-35: at the next offset, from 0 wherever the query itself began; an offset of before is
    extended, not refused."""
    log = GrowingLog([b"a"], [b"b", b"c"])
    source = stream(log, startingOffsets=starting)
    start = source.initialOffset()
    before = source.latestOffset(start, ALL)
    assert before == at(1, 2)
    log.add([], [b"d", b"e"])
    assert source.initialOffset() == start, "Spark may ask again"
    after = source.latestOffset(before, ALL)
    assert after == at(1, 2, 0, 2)
    assert data_of(source, source.partitions(before, after)) == [b"d", b"e"]
    assert source.reportLatestOffset() == at(1, 2, 0, 2)
    again = stream(log, startingOffsets=starting)
    assert again.latestOffset(before, ALL) == after, "after a restart from the checkpoint"
    assert again.partitions(before, before) == []


def test_a_stream_that_ends_with_what_there_was_leaves_new_partitions_to_the_next() -> None:
    log = GrowingLog([b"a"])
    source = stream(log)
    source.prepareForTriggerAvailableNow()
    log.add([b"b"])
    assert source.latestOffset(at(0), ALL) == at(1, 0)
    assert stream(log).latestOffset(at(1, 0), ALL) == at(1, 1)


def test_a_stream_of_chosen_partitions_stays_with_them() -> None:
    log = GrowingLog([b"a"], [b"b"])
    source = stream(log, partitions="1")
    log.add([b"c"])
    assert source.latestOffset({**at(), "1": 0}, ALL) == {**at(), "1": 1}


def test_a_sink_writes_to_new_partitions_and_finds_what_an_earlier_attempt_wrote_there() -> None:
    with InMemoryCluster(partitions=2, for_tests=True) as cluster:
        access = InMemoryAccess(cluster).access
        rows = [(n % 4, n, b"row %d" % n) for n in range(40)]

        def dying() -> Iterator[Any]:
            yield batch_of([row for row in rows if row[0] < 2][:5])
            cluster.add_partitions(4)
            raise ConnectionResetError("the executor is gone")

        with pytest.raises(ConnectionResetError):
            write_rows(access, identity(), dying())
        written = write_rows(access, identity(), [batch_of(rows)])
        assert written.appended + written.found == 40
        assert write_rows(access, identity(run="again"), [batch_of(rows)]) == TaskRows(0, 40)
        assert Counter(log_of(cluster)) == Counter(rows)


FILE = """\
pipeline: tables
cluster: {cluster}
target: tables.db
transactionsPerBatch: 16
decode:
  fields: {{amount: bigint, kind: string}}
tables:
  kinds:
    keys: {{kind: kind}}
    measures: {{total: sum(amount), entries: count(*)}}
"""


def write(cluster: str, count: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(count):
            entry = json.dumps({"amount": number, "kind": f"k{number % 3}"}).encode()
            client.append(number % client.partition_count, entry)


def logged(cluster: str) -> set[tuple[int, int, bytes]]:
    with waltz.open_reader(cluster) as log:
        return {
            (partition, run.first_transaction_id + index, bytes(data))
            for partition in range(log.partition_count)
            for run in log.read(partition, 0, log.high_water_mark(partition) + 1)
            for index, data in enumerate(run.data)
        }


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
def test_a_running_query_an_archive_and_tables_go_on_over_a_growth(
    spark: SparkSession, tmp_path: Path
) -> None:
    """F-35: none of them is made anew, and what is proven equal before is so after it."""
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        cluster = running.coordinator
        access, archive = LogAccess(cluster), tmp_path / "archive"
        definition = parse_definition(FILE.format(cluster=cluster), directory=tmp_path)
        rows: list[tuple[int, int, bytes]] = []

        def keep(frame: DataFrame, batch_id: int) -> None:
            rows.extend((r.partition, r.transaction_id, bytes(r.data)) for r in frame.collect())

        def start() -> Any:
            return (
                spark.readStream.format("waltz")
                .option("cluster", cluster)
                .option("startingOffsets", "earliest")
                .load()
                .writeStream.foreachBatch(keep)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )

        query = start()
        write(cluster, 20)
        wait_until(lambda: len(rows) == 20, "the query has not read what there was")
        add_to_archive(spark, access, archive)
        take_in(spark, access, definition)

        grown = run_waltz("cluster", "add-partitions", "--cluster", cluster, "--to", "5")
        assert grown.returncode == 0, grown.stderr
        write(cluster, 20)
        wait_until(lambda: len(rows) == 40, "the query has not taken the new partitions up")
        query.processAllAvailable()  # a batch that is stopped before its commit is run again
        query.stop()
        write(cluster, 20)
        query = start()
        wait_until(lambda: len(rows) == 60, "the query has not gone on")
        query.stop()
        assert len(rows) == len(set(rows)) == 60
        assert set(rows) == logged(cluster)

        lags = [
            PartitionLag(PartitionId(n), 10 if n < 2 else 0, 18 if n < 2 else 8) for n in range(5)
        ]
        assert archive_lag(access, archive) == lags
        assert lag(access, definition) == lags
        assert add_to_archive(spark, access, archive).transactions == 40
        assert take_in(spark, access, definition).transactions == 40
        proven = verify_archive(spark, access, archive)
        assert (proven.transactions, proven.differences) == (60, ())
        tables = verify(spark, access, definition)
        assert (tables.transactions, tables.differences) == (60, ())
        expected: Counter[str] = Counter()
        for _, _, data in logged(cluster):
            entry = json.loads(data)
            expected[entry["kind"]] += entry["amount"]
        with sqlite3.connect(definition.target) as database:
            assert dict(database.execute("SELECT kind, total FROM kinds")) == dict(expected)
