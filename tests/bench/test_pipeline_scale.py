"""The bench of tables with many keys: its keys, its digest, and a short run on real systems."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bench.pipeline_scale import (
    BatchFound,
    Result,
    differences,
    expected_facts,
    found_facts,
    keys_of,
    records,
    values_of,
)
from bench.process_tree import Memory
from tests.clusters import ROOT

COUNT = 5_000


@pytest.mark.parametrize("order", ["scattered", "ascending"])
def test_each_key_is_that_of_one_transaction(order: str) -> None:
    parts = [keys_of(first, first + 1_000, COUNT, order) for first in range(0, COUNT, 1_000)]
    keys = np.concatenate(parts)
    assert sorted(keys.tolist()) == list(range(COUNT))
    halves = [int(np.count_nonzero(each < COUNT // 2)) for each in parts]
    assert halves == [1_000, 1_000, 500, 0, 0] if order == "ascending" else min(halves) > 300
    assert records(keys[:1]) == [b'{"k":%d,"v":%d}' % (keys[0], values_of(keys[:1])[0])]


def test_a_table_that_is_right_has_the_facts_of_its_keys_and_no_other_has(tmp_path: Path) -> None:
    keys = np.arange(COUNT)
    right = list(zip(keys.tolist(), values_of(keys).tolist(), [1] * COUNT, strict=True))

    def facts_differ(rows: list[tuple[int, int, int]], name: str) -> list[str]:
        place = tmp_path / name
        with closing(sqlite3.connect(place)) as database, database:
            database.execute("CREATE TABLE totals (k, total, moves)")
            database.executemany("INSERT INTO totals VALUES (?, ?, ?)", rows)
        return differences(expected_facts(COUNT), found_facts("sqlite", place))

    assert facts_differ(right, "right") == []
    (first, low, _), (second, high, _) = right[17], right[4_000]
    swapped = [*right]
    swapped[17], swapped[4_000] = (first, high, 1), (second, low, 1)
    assert [each.split(":")[0] for each in facts_differ(swapped, "swapped")] == [
        "low_digest",
        "high_digest",
    ]
    missing = facts_differ(right[1:], "missing")
    assert "rows: expected 5,000, found 4,999" in missing
    assert "first_key: expected 0, found 1" in missing
    twice = facts_differ([*right[:-1], (second, high, 2)], "twice")
    assert "keys: expected 5,000, found 4,999" in twice
    assert "moves_max: expected 1, found 2" in twice


def test_the_last_batches_are_compared_with_the_first_ones() -> None:
    def flatness(seconds: list[float]) -> float:
        batches = [BatchFound(each, each, it, it, 0.0) for each, it in enumerate(seconds)]
        return Result("sqlite", 1, "scattered", Memory(), batches).flatness

    assert flatness([9.0] + [2.0] * 9 + [50.0] * 80 + [3.0] * 9 + [70.0]) == 1.5
    assert flatness([2.0, 5.0, 4.0]) == 2.0
    assert flatness([2.0]) == 1.0


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["sqlite", "delta", "iceberg"])
def test_keys_are_taken_in_and_compared(target: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    numbers = ("--keys", "3000", "--batches", "3", "--target", target)
    places = ("--directory", str(tmp_path), "--json", str(figures))
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline_scale", *numbers, *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right: 3,000 keys" in done.stdout
    assert [each for each in tmp_path.iterdir() if each != figures] == []
    found = json.loads(figures.read_text())
    assert [each["keys"] for each in found["batches"]] == [1_000, 2_000, 3_000]
    for each in found["batches"]:
        parts = each["read_seconds"] + each["commit_seconds"]
        assert 0 < parts <= each["seconds"] + 1e-3
    assert found["found"] == found["expected"]
    memory = found["memory"]
    assert 0 < memory["worker"] < memory["java"] < 2 * 2**30
    assert memory["driver"] > 0
    assert memory["workers_together"] > 0
