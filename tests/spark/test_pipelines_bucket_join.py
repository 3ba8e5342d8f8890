"""The work of an executor on one bucket: joined with what is there, bounded, never half done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.tables_by_value import LAYOUT, Event, folded
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.pipelines.bucket_join import BucketJoin, arrow_schema, bucket_of, joined
from waltz.spark.pipelines.frames import Grouped
from waltz.spark.pipelines.table_store import Column, Layout, Rows
from waltz.spark.pipelines.tables import PLACES, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 4


def table_of(events: list[Event]) -> pa.Table:
    rows = folded(events)
    names = arrow_schema(LAYOUT).names
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], arrow_schema(LAYOUT)
    )


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return sorted(zip(*(each.to_pylist() for each in table.columns), strict=True), key=repr)


def join(root: Path, **files: str) -> BucketJoin:
    present = {int(name[1:]): [path] for name, path in files.items()}
    return BucketJoin(str(root), LAYOUT, present, 1, BUCKETS)


def events_of(count: int) -> list[Event]:
    return [(f"key {each % 50}", each % 3 or None, each, 0, each) for each in range(count)]


keys = st.tuples(
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, 0, 1]),
    st.one_of(st.none(), st.integers(-5, 5)),
)


@given(st.lists(keys, max_size=12), st.lists(keys, min_size=1, max_size=6))
def test_rows_that_pass_the_join_by_are_those_that_it_would_not_change(
    old: list[Any], new: list[Any]
) -> None:
    events: list[Event] = [(*each, 0, number) for number, each in enumerate([*old, *new])]
    found = joined(LAYOUT, table_of(events[: len(old)]), table_of(events[len(old) :]))
    assert rows_of(found) == sorted(folded(events), key=repr)


def test_a_bucket_is_of_the_value_that_a_table_has() -> None:
    assert bucket_of([True, "x"], 1 << 30) == bucket_of([1, "x"], 1 << 30)
    found = {bucket_of(key, 1 << 30) for key in ([None], [0], ["0"], [""], ["n"], [-1])}
    assert len(found) == 6
    counts = [0] * BUCKETS
    for number in range(1000):
        counts[bucket_of([number], BUCKETS)] += 1
    assert min(counts) > 150


def test_a_task_that_runs_twice_leaves_a_file_that_nobody_names_and_the_same_rows(
    tmp_path: Path,
) -> None:
    rows = Rows(LAYOUT, folded(events_of(200)))
    first, again = join(tmp_path).run(rows), join(tmp_path).run(rows)
    assert {each.path for each in first}.isdisjoint(each.path for each in again)
    for one, other in zip(first, again, strict=True):
        tables = [pq.read_table(tmp_path / each.path, partitioning=None) for each in (one, other)]
        assert rows_of(tables[0]) == rows_of(tables[1])
        assert one.row_count == len(tables[0])
        assert one.size == (tmp_path / one.path).stat().st_size
    assert sum(each.row_count for each in first) == len(rows.values)


def test_a_bucket_beyond_the_bound_is_refused_with_a_remedy_before_it_is_read_whole(
    tmp_path: Path,
) -> None:
    work = join(tmp_path)
    (present,) = work.run(Rows(LAYOUT, folded([("k", 0, 1, 0, 0)])))
    files = {f"b{present.bucket}": present.path}
    more = Rows(LAYOUT, folded([("k", 0, 1, 0, 1)]))
    size = table_of([("k", 0, 1, 0, 0)]).nbytes
    with pytest.raises(
        ConfigurationError,
        match=r"^WALTZ-2015 .*bucket \d has more than .*`buckets: 16` into .*rebuild`",
    ):
        replace(join(tmp_path, **files), bytes_max=size * 2 - 1).run(more)
    (found,) = replace(join(tmp_path, **files), bytes_max=size * 4).run(more)
    assert rows_of(pq.read_table(tmp_path / found.path, partitioning=None)) == folded(
        [("k", 0, 1, 0, 0), ("k", 0, 1, 0, 1)]
    )


def test_a_file_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    fresh = Rows(LAYOUT, folded([("k", 0, 1, 0, 1)]))
    bucket = bucket_of(["k", 0], BUCKETS)
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*bucket \d: .*gone\.parquet"):
        join(tmp_path, **{f"b{bucket}": "gone.parquet"}).run(fresh)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*bucket \d: "):
        join(tmp_path, **{f"b{bucket}": "damaged.parquet"}).run(fresh)


@pytest.mark.spark
def test_executors_join_what_the_same_work_does_here(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of(300)
    here, there = tmp_path / "here", tmp_path / "there"
    for each in (here, there):
        each.mkdir()
    rows = Rows(LAYOUT, folded(events))
    frame = spark.createDataFrame(table_of(events))
    local = {each.bucket: each for each in join(here).run(rows)}
    remote = {each.bucket: each for each in join(there).run(Grouped(LAYOUT, frame))}
    assert remote.keys() == local.keys() == set(range(BUCKETS))
    for bucket, found in remote.items():
        tables = [
            pq.read_table(root / each.path, partitioning=None)
            for root, each in ((here, local[bucket]), (there, found))
        ]
        assert rows_of(tables[0]) == rows_of(tables[1])
        assert found.statistics == local[bucket].statistics


@pytest.mark.spark
@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("timestamp'+12000-01-01 00:00:00'", "year"),
        ("cast(x'ff' as string)", "UTF-?8|utf-8"),
    ],
)
def test_what_no_table_can_have_is_named_by_its_column(
    spark: SparkSession, tmp_path: Path, value: str, fault: str
) -> None:
    places = ", ".join(f"0L AS {each}" for each in PLACES)
    layout = Layout(
        TableDefinition("t", (("a", "a"),), ()),
        (Column("a", "TEXT"), *(Column(each, "INTEGER") for each in PLACES)),
    )
    frame = spark.sql(f"SELECT {value} AS a, {places}")
    work = BucketJoin(str(tmp_path), layout, {}, 1, BUCKETS)
    with pytest.raises(CorruptionError, match=rf"^WALTZ-2015 .*column a: .*({fault}|date)"):
        work.run(Grouped(layout, frame))
    assert list(tmp_path.iterdir()) == []
