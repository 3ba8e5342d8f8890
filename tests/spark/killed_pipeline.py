"""A pipeline of tables as a program of its own, to be killed: it takes in what the log has.

python -m tests.spark.killed_pipeline COORDINATOR DIRECTORY FORMAT [TABLE...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.spark.short_sessions import SHORT_LIVED
from waltz.spark import spark_session
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.tasks import LogAccess

FILE = """\
pipeline: tables
cluster: {cluster}
target: {kind}:tables
transactionsPerBatch: 150
"""
TABLES = {
    "texts": """
  texts:
    keys: {text: cast(data as string)}
    measures: {count: count(*), headers: sum(header), latest: last(header)}
""",
    "headers": """
  headers:
    keys: [header]
    measures: {count: count(*), greatest: max(cast(data as string))}
""",
}
OPTIONS = {
    "spark.master": "local[2,4]",
    "spark.sql.shuffle.partitions": "2",
    **SHORT_LIVED,
}


BUCKETS = 4


def defined(
    coordinator: str, directory: Path, kind: str, tables: Sequence[str] = ()
) -> PipelineDefinition:
    """Return the definition; no names of tables: all of them."""
    text = FILE.format(cluster=coordinator, kind=kind)
    text += "" if kind == "sqlite" else f"buckets: {BUCKETS}\n"
    text += "tables:" + "".join(TABLES[each] for each in tables or TABLES)
    return parse_definition(text, directory=directory)


def main(coordinator: str, directory: Path, kind: str, *tables: str) -> None:
    spark = spark_session("killed", **OPTIONS)
    definition = defined(coordinator, directory, kind, tables)
    while True:
        take_in(spark, LogAccess(coordinator), definition)
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
