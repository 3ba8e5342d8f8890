"""Spark's queries over a log of many partitions, on a real cluster of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waltz
from tests.clusters import running_cluster
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.tasks import LogAccess
from waltz.system.real_host import real_host
from waltz.types import parse_coordinator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

PARTITIONS = 10
ROWS = 10


@pytest.fixture
def many(tmp_path: Path) -> Iterator[str]:
    """The coordinator of a cluster of many partitions, each with a few transactions."""
    with running_cluster(tmp_path / "data", "--partitions", str(PARTITIONS)) as running:
        write(running.coordinator, 0)
        yield running.coordinator


def write(cluster: str, first: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for partition in range(PARTITIONS):
            numbers = range(first, first + ROWS)
            client.append_many(partition, [b"%d of %d" % (n, partition) for n in numbers])


def client_ids_given(cluster: str) -> int:
    """The coordinator's own count of the changes of the node that client IDs come from."""

    async def ask() -> int:
        coordinator = real_host(parse_coordinator(cluster)).coordinator
        try:
            node = await coordinator.read(ClusterPaths(DEFAULT_ROOT).client_id_counter)
        finally:
            await coordinator.close()
        return node.version

    return asyncio.run(ask())


class Kept:
    """The rows of the batches of a query, and the number of tasks of each batch."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, bytes]] = []
        self.tasks: list[int] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.tasks.append(frame.rdd.getNumPartitions())
        self.rows += [(r.partition, r.transaction_id, bytes(r.data)) for r in frame.collect()]


def run_query(spark: SparkSession, cluster: str, checkpoint: Path, **options: Any) -> Kept:
    kept = Kept()
    query = (
        spark.readStream.format("waltz")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .writeStream.foreachBatch(kept)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return kept


def expected(first: int, end: int) -> set[tuple[int, int, bytes]]:
    return {
        (partition, n, b"%d of %d" % (n, partition))
        for partition in range(PARTITIONS)
        for n in range(first, end)
    }


def test_a_batch_has_few_tasks_and_the_coordinator_is_not_written_to(
    spark: SparkSession, many: str, tmp_path: Path
) -> None:
    given = client_ids_given(many)
    bounds = {"maxTransactionsPerTrigger": PARTITIONS * ROWS // 2, "maxTasksPerTrigger": 3}
    kept = run_query(spark, many, tmp_path / "checkpoint", **bounds)
    assert set(kept.rows) == expected(0, ROWS)
    assert len(kept.rows) == PARTITIONS * ROWS
    assert kept.tasks == [3, 3]
    log = spark.read.format("waltz").option("cluster", many).load()
    assert log.where("transaction_id = 3").count() == PARTITIONS
    assert client_ids_given(many) == given


@pytest.mark.long
def test_a_stream_takes_the_archive_then_the_log_and_ends_where_it_was_told(
    spark: SparkSession, many: str, tmp_path: Path
) -> None:
    """In three runs of one query: what is archived, what is only logged, nothing beyond the end."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    add_to_archive(spark, LogAccess(many), archive)
    write(many, ROWS)
    options = {"archive": str(archive), "endingOffsets": "latest", "maxTasksPerTrigger": 2}
    half = PARTITIONS * ROWS
    first = run_query(spark, many, checkpoint, **options, maxTransactionsPerTrigger=half)
    assert first.tasks == [2, 2]
    assert set(first.rows) == expected(0, 2 * ROWS)
    assert len(first.rows) == 2 * half
    write(many, 2 * ROWS)
    assert run_query(spark, many, checkpoint, **options).rows == []
    del options["endingOffsets"]  # the same checkpoint goes on
    assert set(run_query(spark, many, checkpoint, **options).rows) == expected(2 * ROWS, 3 * ROWS)
    last = run_query(spark, many, tmp_path / "last", startingOffsets="latest-2")
    assert set(last.rows) == expected(3 * ROWS - 2, 3 * ROWS)
