"""Work in Spark tasks: results come back in the order of the values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from waltz.spark.work import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_each_value_is_worked_on_elsewhere_and_its_result_comes_back(spark: SparkSession) -> None:
    found = run_tasks(spark, ["c", "a", "b"], lambda value: (value * 2, os.getpid()))
    assert [text for text, _ in found] == ["cc", "aa", "bb"]
    assert os.getpid() not in {process_id for _, process_id in found}


@pytest.mark.spark
def test_nothing_to_do_needs_no_task(spark: SparkSession) -> None:
    assert run_tasks(spark, [], str) == []


class Counted:
    """Leaves a file each time that it is unpickled."""

    def __init__(self, directory: str, number: int) -> None:
        self.directory = directory
        self.number = number

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (Path(self.directory) / f"{self.number}-{uuid4()}").touch()


@pytest.mark.spark
def test_a_task_is_sent_no_value_but_its_own(spark: SparkSession, tmp_path: Path) -> None:
    values = [Counted(str(tmp_path), number) for number in range(5)]
    assert run_tasks(spark, values, lambda each: each.number) == [0, 1, 2, 3, 4]
    unpickled = sorted(each.name.partition("-")[0] for each in tmp_path.iterdir())
    assert unpickled == ["0", "1", "2", "3", "4"]
