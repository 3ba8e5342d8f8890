"""Every table format alike, without a target: one table from its making to its last version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.spark.tables_by_value import LAYOUT, Event, folded, ranged
from waltz.spark.pipelines.delta_format import DeltaFormat
from waltz.spark.pipelines.iceberg_format import IcebergFormat
from waltz.spark.pipelines.lake_format import LakeFormat
from waltz.spark.pipelines.table_store import Rows
from waltz.types import PartitionId

BUCKETS = 3
EVENTS: list[Event] = [(f"k{each % 5}", 0, each, 0, each) for each in range(20)]
COLUMNS = [each.name for each in LAYOUT.columns]


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeFormat[Any, Any]]:
    if request.param == "delta":
        yield DeltaFormat(str(tmp_path), lambda: [PartitionId(0)])
        return
    with closing(IcebergFormat(tmp_path, tmp_path / "catalog.db")) as opened:
        yield opened


def commit(tables: LakeFormat[Any, Any], table: Any, number: int, events: list[Event]) -> None:
    files = tables.files(table)
    rows = Rows(LAYOUT, folded(events))
    joined = tables.join(table, LAYOUT, files, number, BUCKETS).run(rows)
    ranges = [ranged(events[0][4], events[-1][4] + 1)]
    tables.commit(table, LAYOUT, files, joined, number, ranges)


def content(tables: LakeFormat[Any, Any]) -> list[tuple[Any, ...]]:
    batches = tables.read(tables.opened("t"), COLUMNS)
    return sorted((tuple(row.values()) for each in batches for row in each.to_pylist()), key=repr)


def test_a_table_has_the_fold_the_number_and_the_marks_of_each_commit(
    tables: LakeFormat[Any, Any],
) -> None:
    tables.create(LAYOUT, BUCKETS)
    made = tables.opened("t")
    assert (tables.batches(made), tables.files(made), content(tables)) == (0, {}, [])
    for number, end in enumerate((10, 20), 1):
        commit(tables, tables.opened("t"), number, EVENTS[end - 10 : end])
        tables.create(LAYOUT, BUCKETS)  # it is there
        assert content(tables) == sorted(folded(EVENTS[:end]), key=repr)
        assert tables.batches(tables.opened("t")) == number
        versions = tables.versions("t")
        assert (versions.newest, versions.marks(versions.newest)) == (number, {0: end})
        assert versions.files(versions.newest).keys() == tables.files(tables.opened("t")).keys()
    assert versions.marks(1) == {0: 10}
    assert (tables.names(), tables.directories()) == (["t"], ["t"])


def test_a_commit_on_a_version_that_was_replaced_is_a_conflict(
    tables: LakeFormat[Any, Any],
) -> None:
    tables.create(LAYOUT, BUCKETS)
    stale = tables.opened("t")
    commit(tables, tables.opened("t"), 1, EVENTS[:10])
    with pytest.raises(tables.conflicts()):
        commit(tables, stale, 1, EVENTS[:10])
    assert content(tables) == sorted(folded(EVENTS[:10]), key=repr)


def test_a_table_that_is_not_there_is_a_fault(tables: LakeFormat[Any, Any]) -> None:
    assert tables.names() == []
    with pytest.raises(tables.faults()):
        tables.opened("t")
