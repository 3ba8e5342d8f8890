"""Runs the first program of README.md in this process, as it stands there; prints what came of it.

    spark-submit tests/spark/front_doors.py COORDINATOR
    SPARK_REMOTE=local python -m tests.spark.front_doors COORDINATOR
    python -m tests.spark.front_doors COORDINATOR existing

With `existing` a session that somebody else has made is there before. Prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def readme_program(coordinator: str) -> str:
    """Return the program, on another cluster."""
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (program,) = [each for each in programs if "spark_session" in each]
    return str(program).replace("127.0.0.1:7100", coordinator)


def main(coordinator: str, door: str = "") -> None:
    theirs: Any = None
    if door == "existing":
        from pyspark.sql import SparkSession

        theirs = SparkSession.builder.master("local[1]").appName("theirs").getOrCreate()
        theirs.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    names: dict[str, Any] = {}
    exec(readme_program(coordinator), names)
    spark, log = names["spark"], names["log"]
    read = spark.read.format("waltz").option("cluster", coordinator)
    log.where("transaction_id = 0").selectExpr(
        "partition", "header", "concat(cast('copy of ' as binary), data) data"
    ).write.format("waltz").mode("append").option("cluster", coordinator).option(
        "writeId", "copies"
    ).save()
    zone = "spark.sql.session.timeZone"
    found = {zone: spark.conf.get(zone)}
    if hasattr(spark, "_jsparkSession"):
        context = spark.sparkContext
        found |= {"master": context.master, "app": context.appName}
    found |= {"rows": read.load().count(), "is_theirs": spark is theirs}
    print(json.dumps(found | {"kind": type(spark).__module__}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
