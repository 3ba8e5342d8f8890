"""What a micro-batch over many partitions costs: `python -m bench.spark_source --partitions 1000`.

Runs a cluster and a stream on this machine, writes some transactions into each partition between
micro-batches, and prints per micro-batch the processor time of planning, the tasks, and how often
the coordinator was written to for client IDs. Planning is timed in this process, without Spark's
own work and its processes: marks, offsets, tasks, and the pickling of what travels; once with one
question for each server, once partition by partition, as servers of earlier releases are asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

import waltz
from tests.clusters import running_cluster
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.connections.connection_shell import ServerConnection
from waltz.spark import spark_session
from waltz.spark.log_columns import log_schema
from waltz.spark.schema import arrow_schema
from waltz.spark.spark_options import parse_options
from waltz.spark.stream import WaltzStreamReader
from waltz.system.real_host import real_host
from waltz.types import parse_coordinator
from waltz.wire.lifecycle_protocol import Feature


def write(cluster: str, partitions: int, rows: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for partition in range(partitions):
            client.append_many(partition, [b"x" * 128] * rows)


def client_ids_given(cluster: str) -> int:
    """The coordinator's own count of the changes of the node that client IDs come from."""

    async def ask() -> int:
        coordinator = real_host(parse_coordinator(cluster)).coordinator
        try:
            return (await coordinator.read(ClusterPaths(DEFAULT_ROOT).client_id_counter)).version
        finally:
            await coordinator.close()

    return asyncio.run(ask())


def plan(cluster: str, partitions: int, rows: int, batches: int) -> None:
    """Plan micro-batches in this process."""
    parsed = parse_options({"cluster": cluster}, is_stream=True)
    source = WaltzStreamReader(parsed, arrow_schema(log_schema()))
    offset = source.initialOffset()
    spent: dict[str, list[float]] = {"latestOffset": [], "report": [], "partitions": []}
    given = client_ids_given(cluster)
    writing = 0
    tasks: Any = []
    for _ in range(batches):
        before = client_ids_given(cluster)
        write(cluster, partitions, rows)
        writing += client_ids_given(cluster) - before
        began = time.process_time()
        end = source.latestOffset(offset, ReadAllAvailable())
        looked = time.process_time()
        source.reportLatestOffset()
        reported = time.process_time()
        tasks = source.partitions(offset, end)
        shipped = sum(len(pickle.dumps(each)) for each in tasks)
        json.dumps(end)
        planned = time.process_time()
        spent["latestOffset"].append(looked - began)
        spent["report"].append(reported - looked)
        spent["partitions"].append(planned - reported)
        offset = end
    source.stop()
    medians = {name: statistics.median(each) * 1000 for name, each in spent.items()}
    print(
        f"planning of {partitions} partitions x {rows} rows, median of {batches}:"
        f" {sum(medians.values()):.1f} ms CPU ("
        + ", ".join(f"{name} {value:.1f}" for name, value in medians.items())
        + f"), {len(tasks)} tasks of {shipped // max(1, len(tasks)):,} bytes,"
        f" client IDs taken {client_ids_given(cluster) - given - writing}",
        flush=True,
    )


def stream(cluster: str, directory: Path, partitions: int, rows: int, batches: int) -> None:
    """Let Spark run micro-batches."""
    spark = spark_session("spark_source", **{"spark.master": "local[2]"})
    query = (
        spark.readStream.format("waltz")
        .option("cluster", cluster)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    given, writing = client_ids_given(cluster), 0
    for _ in range(batches):
        before = client_ids_given(cluster)
        write(cluster, partitions, rows)
        writing += client_ids_given(cluster) - before
        query.processAllAvailable()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    for part in ("latestOffset", "queryPlanning", "addBatch", "triggerExecution"):
        found = [each["durationMs"].get(part, 0) for each in progress]
        print(f"{part:20} median {statistics.median(found):8.0f} ms of {len(found)} batches")
    print(f"rows {sum(each['numInputRows'] for each in progress)}")
    print(f"client IDs taken {client_ids_given(cluster) - given - writing}", flush=True)
    query.stop()
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=10, help="of each partition per micro-batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--plan-only", action="store_true")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="waltz-spark-source-") as name:
        directory = Path(name)
        options = ("--partitions", str(chosen.partitions))
        with running_cluster(directory / "data", *options) as running:
            cluster = running.coordinator
            write(cluster, chosen.partitions, 1)
            counts = chosen.partitions, chosen.rows, chosen.batches
            plan(cluster, *counts)
            has = ServerConnection.has
            ServerConnection.has = (  # type: ignore[method-assign]
                lambda self, feature: feature is not Feature.MARKS and has(self, feature)
            )
            print("partition by partition, as an earlier server is asked:", end=" ")
            plan(cluster, *counts)
            ServerConnection.has = has  # type: ignore[method-assign]
            if not chosen.plan_only:
                stream(cluster, directory, *counts)


if __name__ == "__main__":
    main()
