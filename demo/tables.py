"""The Spark job: the log becomes summary tables in Parquet.

The log is scanned once: decoded, checked row by row with CRC-32, and written as the table `events`.
Every summary is made from that. Run as `python -m demo.tables`; prints its figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.flights import CANCELLED, DIVERTED, EVENT_FIELDS, TEXT_FIELDS_OF_EVENT
from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT_SCHEMA: Final = ", ".join(
    f"{name} {'string' if name in TEXT_FIELDS_OF_EVENT else 'int'}" for name in EVENT_FIELDS
)

SUMMARIES: Final = {
    "by_carrier": ("carrier",),
    "by_origin": ("origin",),
    "by_month": ("month",),
    "by_hour": ("hour",),
    "by_day": ("month", "day"),
    "by_origin_and_hour": ("origin", "hour"),
}
"""Summary tables of delays and cancellations, and what a row of each stands for."""

QUANTILES: Final = (0.5, 0.9, 0.99)

SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": 1,
    "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Every summary is a small file, and the whole job too short for Java's second compiler to pay."""


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m demo.tables", description=__doc__)
    arguments.add_argument("--cluster", required=True, help="the coordinator's host:port")
    arguments.add_argument("--directory", required=True, type=Path, help="for the tables, new")
    given = arguments.parse_args()
    print(json.dumps(make_tables(given.cluster, given.directory)))


def make_tables(cluster: str, directory: Path) -> dict[str, float]:
    """Write every table into `directory` and return how long what took, and the rows scanned."""
    started = time.monotonic()
    spark = spark_session("flights", **SETTINGS)
    # One small job starts the Python side, so that the scan is measured and not the start.
    spark.range(1).count()
    ready = time.monotonic()
    log = spark.read.format("waltz").option("cluster", cluster).load()
    decoded(log).write.parquet(str(directory / "events"))
    scanned = time.monotonic()
    events = spark.read.parquet(str(directory / "events"))
    row_count = events.count()
    for name, keys in SUMMARIES.items():
        summary(events, *keys).write.parquet(str(directory / name))
    aircraft(events).write.parquet(str(directory / "by_aircraft"))
    partitions(events).write.parquet(str(directory / "by_partition"))
    summarised = time.monotonic()
    spark.stop()
    return {
        "rows": row_count,
        "session_seconds": ready - started,
        "scan_seconds": scanned - ready,
        "summary_seconds": summarised - scanned,
    }


def decoded(log: DataFrame) -> DataFrame:
    """Return one row per transaction: its place, its check, and the flight it carries.

    `check` is the CRC-32 of "transaction ID:header:data", as `demo.verify` computes it.
    """
    from pyspark.sql import functions as f

    place = f.concat_ws(":", "transaction_id", "header", f.lit(""))
    event = f.from_json(f.col("data").cast("string"), EVENT_SCHEMA, {"mode": "FAILFAST"})
    return log.select(
        "partition",
        "transaction_id",
        "header",
        f.crc32(f.concat(f.encode(place, "UTF-8"), "data")).alias("check"),
        event.alias("event"),
    ).select("partition", "transaction_id", "header", "check", "event.*")


def summary(events: DataFrame, *keys: str) -> DataFrame:
    """Return flights, cancellations and quantiles of delays per value of `keys`, in their order."""
    from pyspark.sql import functions as f

    return (
        events.groupBy(*keys)
        .agg(
            f.count("*").alias("flights"),
            _count_of(CANCELLED).alias("cancelled"),
            _count_of(DIVERTED).alias("diverted"),
            f.sum("distance").alias("distance"),
            f.percentile_approx("departure_delay", QUANTILES).alias("departure_delay"),
            f.percentile_approx("arrival_delay", QUANTILES).alias("arrival_delay"),
        )
        .sortWithinPartitions(*keys)
    )


def aircraft(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        events.groupBy("aircraft")
        .agg(
            f.count("*").alias("legs"),
            f.max("leg").alias("last_leg"),
            f.sum("distance").alias("distance"),
        )
        .sortWithinPartitions("aircraft")
    )


def partitions(events: DataFrame) -> DataFrame:
    """Return per partition what must equal the log and the database."""
    from pyspark.sql import functions as f

    return (
        events.groupBy("partition")
        .agg(
            f.count("*").alias("transactions"),
            f.max("transaction_id").alias("last_transaction_id"),
            f.sum("check").alias("digest"),
            f.sum("distance").alias("distance"),
            f.sum(f.coalesce("departure_delay", f.lit(0))).alias("departure_delay"),
        )
        .sortWithinPartitions("partition")
    )


def _count_of(kind: int) -> Column:
    from pyspark.sql import functions as f

    return f.count_if(f.col("header") == kind)


if __name__ == "__main__":
    main()
