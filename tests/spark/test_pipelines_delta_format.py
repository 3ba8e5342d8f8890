"""Delta's own ways: marks are asked for by partition, and a commit is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spark.tables_by_value import LAYOUT, ranged
from waltz.spark.pipelines.delta_format import DeltaFormat
from waltz.types import PartitionId


def test_the_marks_are_those_of_the_partitions_that_are_known_when_they_are_asked_for(
    tmp_path: Path,
) -> None:
    known = [PartitionId(0)]
    tables = DeltaFormat(str(tmp_path), lambda: list(known))
    tables.create(LAYOUT, 1)
    ranges = [ranged(0, 5), ranged(0, 7, partition=2)]
    tables.commit(tables.opened("t"), LAYOUT, {}, [], 1, ranges)
    assert tables.versions("t").marks(1) == {0: 5}
    known.append(PartitionId(2))
    assert tables.versions("t").marks(1) == {0: 5, 2: 7}


def test_a_commit_is_synced_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    tables = DeltaFormat(str(tmp_path), list)
    tables.create(LAYOUT, 1)
    monkeypatch.setattr(os, "fsync", noted)
    tables.commit(tables.opened("t"), LAYOUT, {}, [], 1, [ranged(0, 5)])
    log = tmp_path / "t" / "_delta_log"
    assert {(log / f"{1:020}.json").stat().st_ino, log.stat().st_ino} <= synced
