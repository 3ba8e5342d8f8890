"""A streaming pipeline as a program of its own, to be killed: the log into files, and into the log.

    python -m tests.spark.killed_driver COORDINATOR DIRECTORY

Two queries follow partitions 0 and 1: one writes each batch as Parquet files, one copies the rows
to partitions 2 and 3, after a shuffle, so that a task has the same rows each time in another order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.short_sessions import SHORT_LIVED
from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_TRIGGER = 150
COPY = "copy of "


def copies_of(log: DataFrame) -> DataFrame:
    """Return the rows of `log` as they are written to the partition two further on."""
    data = f"concat(cast('{COPY}' as binary), data) data"
    return log.selectExpr("partition + 2 partition", "header", data)


def main(coordinator: str, directory: Path) -> None:
    spark = spark_session(
        "killed",
        **{
            "spark.master": "local[2,4]",
            "spark.sql.shuffle.partitions": 2,
            **SHORT_LIVED,
        },
    )

    def followed() -> DataFrame:
        return (
            spark.readStream.format("waltz")
            .option("cluster", coordinator)
            .option("partitions", "0-1")
            .option("startingOffsets", "earliest")
            .option("maxTransactionsPerTrigger", ROWS_PER_TRIGGER)
            .load()
        )

    def keep(frame: DataFrame, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(str(directory / "rows" / f"batch={batch_id}"))

    followed().writeStream.foreachBatch(keep).option(
        "checkpointLocation", str(directory / "checkpoint-rows")
    ).start()
    copies = copies_of(followed()).repartition(2, "header")
    copies.writeStream.format("waltz").option("cluster", coordinator).option(
        "checkpointLocation", str(directory / "checkpoint-copies")
    ).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
