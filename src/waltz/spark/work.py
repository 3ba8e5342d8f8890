"""Runs a function for each of some values, each in a Spark task of its own.

For work that reads and writes by itself and has small results: its data never enters the Java
process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_tasks(spark: SparkSession, values: Sequence[T], function: Callable[[T], R]) -> list[R]:
    """Return `function(value)` for each value, in their order.

    Spark repeats a task that fails, so `function` may be called more than once for a value. Raises
    Spark's error when a task has failed too often.
    """
    if not values:
        return []

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                result = pickle.dumps(function(values[index]))
                yield pa.RecordBatch.from_pydict(
                    {"id": pa.array([index], pa.int64()), "result": pa.array([result], pa.binary())}
                )

    tasks = spark.range(0, len(values), 1, len(values)).mapInArrow(work, "id long, result binary")
    results = {row.id: row.result for row in tasks.collect()}
    return [pickle.loads(results[index]) for index in range(len(values))]  # noqa: S301 - our own
