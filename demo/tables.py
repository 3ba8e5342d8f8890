"""The Spark job: the log becomes tables, which are proven equal to it.

A stream decodes the log into the table `events`, checked row by row with CRC-32; quantiles of
delays are made from that. A pipeline keeps everything that can be counted or added up; its file is
written next to the tables. Then that is verified, and the storage nodes' copies are compared. Run
as `python -m demo.tables`; each line that it prints is a part that is done, as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from demo.flights import CANCELLED, DIVERTED, EVENT_FIELDS, TEXT_FIELDS_OF_EVENT
from waltz.spark import spark_session
from waltz.spark.pipelines.audit import audit
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.proof import verify
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
"""Summary tables of delays and cancellations, with the keys of their rows."""

QUANTILES: Final = (0.5, 0.9, 0.99)

BATCH_TRANSACTIONS: Final = 100_000
"""Transactions of one micro-batch."""

CHECK: Final = "crc32(concat(encode(concat_ws(':', transaction_id, header, ''), 'UTF-8'), data))"
"""The CRC-32 of "transaction ID:header:data", as `demo.verify` computes it."""

TABLES: Final[dict[str, Any]] = {
    **{
        name: {
            "keys": list(keys),
            "measures": {
                "flights": "count(*)",
                "cancelled": f"count_if(header = {CANCELLED})",
                "diverted": f"count_if(header = {DIVERTED})",
                "distance": "sum(distance)",
            },
        }
        for name, keys in SUMMARIES.items()
    },
    "by_aircraft": {
        "keys": ["aircraft"],
        "measures": {"legs": "count(*)", "last_leg": "max(leg)", "distance": "sum(distance)"},
    },
    # These must equal the log and the database; every table has the last transaction ID anyway.
    "by_partition": {
        "keys": ["partition"],
        "measures": {
            "transactions": "count(*)",
            "digest": f"sum({CHECK})",
            "distance": "sum(distance)",
            "departure_delay": "sum(coalesce(departure_delay, 0))",
        },
    },
}
DECODED: Final = (
    *("carrier", "origin", "month", "day", "hour", "aircraft", "leg", "distance"),
    "departure_delay",
)
DATABASE: Final = "summaries.db"

SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": 1,
    "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Every summary is small, and the whole job too short for Java's second compiler to pay. The
checkpoint is on a local disk."""


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m demo.tables", description=__doc__)
    arguments.add_argument("--cluster", required=True, help="the coordinator's host:port")
    arguments.add_argument("--directory", required=True, type=Path, help="for the tables, new")
    given = arguments.parse_args()
    differences = make_tables(given.cluster, given.directory)
    for difference in differences:
        print(difference, file=sys.stderr)
    return 1 if differences else 0


def make_tables(cluster: str, directory: Path) -> list[str]:
    """Make every table in `directory`, and prove them; print each part that is done. Return the
    differences."""
    directory.mkdir(parents=True)
    kept, copies = definitions(cluster, directory)
    access = LogAccess(cluster)
    began = time.monotonic()

    def done(part: str, **figures: int) -> None:
        nonlocal began
        now = time.monotonic()
        print(json.dumps({"part": part, "seconds": now - began, **figures}), flush=True)
        began = now

    spark = spark_session("flights", **SETTINGS)
    # One small job starts the Python side, so that the stream is measured and not the start.
    spark.range(1).count()
    done("session")
    stream_events(spark, cluster, directory)
    done("stream")
    row_count = write_delays(spark, directory)
    done("delays", rows=row_count)
    take_in(spark, access, kept)
    done("tables", tables=len(TABLES))
    proven = verify(spark, access, kept)
    done("verify", transactions=proven.transactions, differences=len(proven.differences))
    compared = audit(spark, access, copies)
    done(
        "audit",
        transactions=compared.transactions,
        copies=len({each.name for each in compared.copies}),
        equal=compared.is_equal,
    )
    spark.stop()
    differences = [
        *map(str, proven.differences),
        *([] if compared.is_equal else [compared.to_text()]),
    ]
    if not row_count == proven.transactions == compared.transactions:
        differences.append(
            f"{row_count} transactions were streamed, {proven.transactions} verified and"
            f" {compared.transactions} compared"
        )
    return differences


def definitions(cluster: str, directory: Path) -> tuple[PipelineDefinition, PipelineDefinition]:
    """Write the files of the two pipelines, for `waltz pipeline` as well, and return both."""
    types = {each: "string" if each in TEXT_FIELDS_OF_EVENT else "int" for each in DECODED}
    parsed = []
    for name, content in (
        (
            "summaries",
            {"pipeline": "tables", "target": DATABASE, "decode": {"fields": types}}
            | {"tables": TABLES},
        ),
        ("audit", {"pipeline": "audit", "target": "audit.json"}),
    ):
        text = yaml.safe_dump({"cluster": cluster, **content}, sort_keys=False)
        (directory / f"{name}.yaml").write_text(text)
        parsed.append(parse_definition(text, directory=directory))
    return parsed[0], parsed[1]


def stream_events(spark: SparkSession, cluster: str, directory: Path) -> None:
    """Let a stream take the whole log, batch by batch, into the table `events`."""
    log = (
        spark.readStream.format("waltz")
        .option("cluster", cluster)
        .option("startingOffsets", "earliest")
        .option("maxTransactionsPerTrigger", BATCH_TRANSACTIONS)
        .load()
    )
    query = (
        decoded(log)
        .writeStream.format("parquet")
        .option("path", str(directory / "events"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_delays(spark: SparkSession, directory: Path) -> int:
    """Write the quantiles of every summary and return how many events there are."""
    events = spark.read.parquet(str(directory / "events")).cache()
    row_count = events.count()
    for name, keys in SUMMARIES.items():
        delays(events, *keys).write.parquet(str(directory / name))
    return row_count


def decoded(log: DataFrame) -> DataFrame:
    """Return one row per transaction: its place, its check, and the flight it carries."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("data").cast("string"), EVENT_SCHEMA, {"mode": "FAILFAST"})
    return log.select(
        "partition",
        "transaction_id",
        "header",
        f.expr(CHECK).alias("check"),
        event.alias("event"),
    ).select("partition", "transaction_id", "header", "check", "event.*")


def delays(events: DataFrame, *keys: str) -> DataFrame:
    """Return quantiles of delays per value of `keys`."""
    from pyspark.sql import functions as f

    return events.groupBy(*keys).agg(
        f.percentile_approx("departure_delay", QUANTILES).alias("departure_delay"),
        f.percentile_approx("arrival_delay", QUANTILES).alias("arrival_delay"),
    )


if __name__ == "__main__":
    sys.exit(main())
