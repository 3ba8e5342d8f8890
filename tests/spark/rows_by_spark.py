"""Print the rows that Spark's own Delta source finds, as JSON: the rows of each table's path.

    python -m tests.spark.rows_by_spark PATH ...

The Spark is the newest one that has a Delta source; it and the source are got the first time. None
of Waltz takes part.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.peers.spark_jars import DELTA_JARS, jars, use_spark
from bench.spark_league import DELTA


def plain(named: tuple[str, Any]) -> tuple[str, Any]:
    name, value = named
    return name, bytes(value) if isinstance(value, bytearray) else value


def main() -> None:
    use_spark("tests.spark.rows_by_spark")
    from pyspark.sql import SparkSession

    places = ",".join(map(str, jars("delta", DELTA_JARS)))
    settings: dict[str, Any] = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.jars": places,
    }
    spark = SparkSession.builder.config(map=settings | DELTA).getOrCreate()
    found = []
    for path in sys.argv[1:]:
        rows = spark.read.format("delta").load(path).collect()
        found.append(sorted(repr(sorted(map(plain, row.asDict().items()))) for row in rows))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
