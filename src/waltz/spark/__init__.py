"""Spark reads the log: `spark.read.format("waltz")`, and a session that finds its own Java.

Needs the `spark` extra. Uses the public names of `waltz`, and the inspection of storage
directories.
"""

from waltz.spark.observing import observe
from waltz.spark.spark_session import spark_session

__all__ = ["observe", "spark_session"]
