"""Work in Spark tasks: results come back in the order of the values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
