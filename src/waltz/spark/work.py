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
    """Return `function(value)` for each value, in their order. A task is sent its own value only.

    Spark repeats a task that fails, so `function` may be called more than once for a value. Raises
    Spark's error when a task has failed too often.
    """
    if not values:
        return []

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                result = pickle.dumps(function(pickle.loads(value)))  # noqa: S301 - our own
                yield pa.RecordBatch.from_pydict(
                    {"id": pa.array([index], pa.int64()), "result": pa.array([result], pa.binary())}
                )

    shares = pa.table(
        {
            "id": pa.array(range(len(values)), pa.int64()),
            "value": pa.array([pickle.dumps(each) for each in values], pa.binary()),
        }
    )
    # Dealt out in turn from one place, each task gets one value, and no other.
    dealt = spark.createDataFrame(shares).coalesce(1).repartition(len(values))
    tasks = dealt.mapInArrow(work, "id long, result binary")
    results = {row.id: row.result for row in tasks.collect()}
    return [pickle.loads(results[index]) for index in range(len(values))]  # noqa: S301 - our own
