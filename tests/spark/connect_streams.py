"""Follows partition 0 of a log by streams of Spark Connect into three sinks, to the present end.

    SPARK_REMOTE=local[1] python -m tests.spark.connect_streams COORDINATOR DIRECTORY

The sinks are Parquet files, a function, and partition 1 of the same log. Prints one line of JSON
when all have ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SINKS = ("files", "function", "copies")


def started(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def main(coordinator: str, place: str) -> None:
    directory = Path(place)
    spark = spark_session("streams")
    log = (
        spark.readStream.format("waltz")
        .option("cluster", coordinator)
        .option("startingOffsets", "earliest")
        .option("partitions", "0")
        .option("maxTransactionsPerTrigger", 2)
        .load()
    )
    rows = log.select("partition", "transaction_id", "data")

    def keep(batch: DataFrame, number: int) -> None:
        # A batch may come again: its directory is then replaced.
        batch.write.mode("overwrite").parquet(f"{place}/function/{number}")

    copies = log.selectExpr("1 partition", "header", "data").writeStream.format("waltz")
    files, function, copied = SINKS
    queries = [
        started(
            rows.writeStream.format("parquet").option("path", str(directory / files)),
            directory / f"{files}.checkpoint",
        ),
        started(rows.writeStream.foreachBatch(keep), directory / f"{function}.checkpoint"),
        started(copies.option("cluster", coordinator), directory / f"{copied}.checkpoint"),
    ]
    for query in queries:
        query.awaitTermination()
    last = [query.lastProgress for query in queries]
    ends = [None if each is None else each["sources"][0]["endOffset"] for each in last]
    print(json.dumps({"kind": type(spark).__module__, "ends": ends}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
