"""Reads and writes the log on a master with executors of their own, and prints what came of it.

    python -m tests.spark.two_executors MASTER COORDINATOR DIRECTORY

Nothing that the driver has in memory is there in the executors: what tasks need is shipped to them,
and they reach the log over the network. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.spark.killed_driver import copies_of
from tests.spark.short_sessions import JAVA_OPTIONS, SHORT_LIVED
from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = tuple[int, int, str]


def executors_at_work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many rows this task has read, and which daemon its Python worker was forked by:
    every executor has one of its own."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()], "rows": [rows]})


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(
        (row.partition, row.transaction_id, bytes(row.data).decode()) for row in frame.collect()
    )


def main(master: str, coordinator: str, directory: Path) -> None:
    spark = spark_session(
        "two executors",
        **{
            "spark.master": master,
            "spark.executor.memory": "1g",
            "spark.cores.max": 2,
            "spark.executor.cores": 1,
            **SHORT_LIVED,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            # Tasks wait for both, and are spread over them.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.locality.wait": "0s",
        },
    )
    options = {"cluster": coordinator, "partitions": "0-1"}
    log = spark.read.format("waltz").options(**options, minPartitions="8").load()
    tasks = log.mapInArrow(executors_at_work, "daemon long, rows long").collect()
    read = rows_of(log)

    copies = copies_of(log).write.format("waltz").options(cluster=coordinator, writeId="copies")
    copies.mode("append").save()

    followed: list[Row] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        followed.extend(rows_of(frame))

    query = (
        spark.readStream.format("waltz")
        .options(**options, startingOffsets="earliest", maxTransactionsPerTrigger="40")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = len(query.recentProgress)
    print(
        json.dumps(
            {
                "executors": len({row.daemon for row in tasks}),
                "rows_of_tasks": sum(row.rows for row in tasks),
                "read": read,
                "followed": sorted(followed),
                "batches": batches,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
