"""A pipeline of Delta tables as a program of its own, to be killed: it takes in what the log has.

python -m tests.spark.killed_pipeline COORDINATOR DIRECTORY
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.spark.short_sessions import SHORT_LIVED
from waltz.spark import spark_session
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.tasks import LogAccess

FILE = """\
pipeline: tables
cluster: {cluster}
target: delta:tables
transactionsPerBatch: 150
buckets: 4
tables:
  texts:
    keys: {{text: cast(data as string)}}
    measures: {{count: count(*), headers: sum(header), latest: last(header)}}
  headers:
    keys: [header]
    measures: {{count: count(*), greatest: max(cast(data as string))}}
"""
OPTIONS = {
    "spark.master": "local[2,4]",
    "spark.sql.shuffle.partitions": "2",
    **SHORT_LIVED,
}


def defined(coordinator: str, directory: Path) -> PipelineDefinition:
    return parse_definition(FILE.format(cluster=coordinator), directory=directory)


def main(coordinator: str, directory: Path) -> None:
    spark = spark_session("killed", **OPTIONS)
    while True:
        take_in(spark, LogAccess(coordinator), defined(coordinator, directory))
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
