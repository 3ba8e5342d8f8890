"""A worker's memory and the search for garbage in it: in this process, and in one of Spark's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from waltz.spark.worker_garbage import WorkerGarbage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_searched(wanted: object) -> bool:
    """Return whether a search for garbage visits the object."""
    return any(each is wanted for each in gc.get_objects())


def test_what_a_worker_has_in_memory_is_taken_out_once_after_its_first_task() -> None:
    garbage = WorkerGarbage(lambda: True)
    early: list[str] = []
    first_task = garbage.sparing(iter("ab"))
    assert [next(first_task), next(first_task)] == ["a", "b"]
    assert is_searched(early)
    assert next(first_task, None) is None
    assert not is_searched(early)
    late: list[str] = []
    assert list(garbage.sparing(iter("cd"))) == ["c", "d"]
    assert is_searched(late)


def test_a_cycle_that_the_first_task_has_left_is_freed() -> None:
    freed: list[str] = []

    class Node:
        itself: Node

        def __del__(self) -> None:
            freed.append("freed")

    def task() -> Iterator[str]:
        node = Node()
        node.itself = node
        yield "row"

    gc.disable()
    try:
        assert list(WorkerGarbage(lambda: True).sparing(task())) == ["row"]
    finally:
        gc.enable()
    assert freed == ["freed"]


def test_outside_of_workers_nothing_is_taken_out() -> None:
    early: list[str] = []
    assert list(WorkerGarbage(lambda: False).sparing(iter("ab"))) == ["a", "b"]
    assert is_searched(early)


@pytest.mark.spark
def test_a_worker_of_spark_takes_it_out(spark: SparkSession) -> None:
    # Pickled by value, since it is defined here: the worker need not find the tests.
    class Counts(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counts"

        def schema(self) -> str:
            return "before int, after int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return CountsReader()

    class CountsReader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
            import gc

            from waltz.spark.worker_garbage import GARBAGE

            gc.unfreeze()
            before = gc.get_freeze_count()
            assert list(GARBAGE.sparing(iter("ab"))) == ["a", "b"]
            yield before, gc.get_freeze_count()

    spark.dataSource.register(Counts)
    [row] = spark.read.format("counts").load().collect()
    assert row.before == 0
    assert row.after > 0
