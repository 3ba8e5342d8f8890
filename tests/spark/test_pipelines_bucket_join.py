"""The work of an executor on one bucket: joined with what is there, bounded, never half done."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.tables_by_value import LAYOUT, Event, folded
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.pipelines.bucket_join import (
    BucketJoin,
    JoinedBucket,
    arrow_schema,
    bucket_of,
    joined,
)
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


def only_bucket(root: Path, batches: list[list[Event]], **changes: Any) -> list[BucketRun]:
    """Join batches one after the other with a table of one bucket; return the state after each."""
    files: list[str] = []
    done = []
    for number, events in enumerate(batches, 1):
        work = BucketJoin(str(root), LAYOUT, {0: files}, number, 1, **changes)
        (found,) = work.run(Rows(LAYOUT, folded(events)))
        assert found.replaced <= set(files)
        files = [*(each for each in files if each not in found.replaced), found.path]
        done.append(BucketRun(found, {each: rows_at(root, each) for each in files}))
    return done


class BucketRun(NamedTuple):
    """The result of one batch, and the rows of the files that the bucket has after it."""

    joined: JoinedBucket
    files: dict[str, list[tuple[Any, ...]]]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((row for rows in self.files.values() for row in rows), key=repr)


def rows_at(root: Path, path: str) -> list[tuple[Any, ...]]:
    return rows_of(pq.read_table(root / path, partitioning=None))


@given(st.lists(st.lists(keys, min_size=1, max_size=4), min_size=1, max_size=9))
def test_files_that_stay_and_files_that_are_replaced_have_each_key_once_and_right(
    batches: list[list[Any]],
) -> None:
    events: list[list[Event]] = []
    for rows in batches:
        first = sum(map(len, events))
        events.append([(*row, 0, first + place) for place, row in enumerate(rows)])
    with TemporaryDirectory() as name:
        done = only_bucket(Path(name), events)
    for number, each in enumerate(done, 1):
        so_far = [event for batch in events[:number] for event in batch]
        assert each.rows == sorted(folded(so_far), key=repr)


def test_new_keys_leave_the_files_of_others_alone(tmp_path: Path) -> None:
    old: list[Event] = [(f"old {each}", 0, 1, 0, each) for each in range(100)]
    new: list[list[Event]] = [[(f"new {batch}", 0, 1, 0, 100 + batch)] for batch in range(12)]
    done = only_bucket(tmp_path, [old, *new])
    large = done[0].joined.path
    assert all(large in each.files for each in done)
    assert all(len(each.files) <= 7 for each in done), "the small ones become one"
    again = only_bucket(tmp_path, [old, *new, [("old 7", 0, 1, 0, 200)]])[-1]
    assert again.joined.row_count >= 100, "a file with a key of the batch is replaced"


def test_a_file_with_all_values_of_a_key_in_other_rows_does_not_have_the_key(
    tmp_path: Path,
) -> None:
    old: list[Event] = [("a", 0, 1, 0, 0), ("b", 1, 1, 0, 1), *others(50)]
    found = only_bucket(tmp_path, [old, [("a", 1, 1, 0, 60), ("b", 0, 1, 0, 61)]])[-1]
    assert (found.joined.replaced, found.joined.row_count) == (frozenset(), 2)
    found = only_bucket(tmp_path, [old, [("b", 1, 1, 0, 60)]])[-1]
    assert (len(found.joined.replaced), found.joined.row_count) == (1, len(old))


def others(count: int) -> list[Event]:
    return [(f"other {each}", 0, 1, 0, 2 + each) for each in range(count)]


def test_files_with_a_key_of_the_batch_beyond_the_bound_are_refused_with_a_remedy(
    tmp_path: Path,
) -> None:
    one, again, other = (list[Event]([(key, 0, 1, 0, at)]) for at, key in enumerate("kko"))
    size = table_of(one).nbytes
    with pytest.raises(
        ConfigurationError,
        match=r"^WALTZ-2015 .*bucket 0 has more than .*`buckets: 4` into .*rebuild`",
    ):
        only_bucket(tmp_path, [one, again], bytes_max=size * 2 - 1)
    assert len(only_bucket(tmp_path, [one, again], bytes_max=size * 4)[-1].files) == 1
    alone = only_bucket(tmp_path, [one, other], bytes_max=size * 2 - 1)[-1]
    assert (len(alone.files), alone.joined.row_count) == (2, 1), "another key needs no room"


def test_files_become_one_only_within_the_bound(tmp_path: Path) -> None:
    batches: list[list[Event]] = [[(f"k{each}", 0, 1, 0, each)] for each in range(9)]
    size = table_of(batches[0]).nbytes
    assert len(only_bucket(tmp_path, batches, bytes_max=size * 100)[-1].files) < 5
    assert len(only_bucket(tmp_path, batches, bytes_max=size * 4 - 1)[-1].files) == 9


def test_rows_larger_than_those_of_the_batch_become_one_only_within_the_bound(
    tmp_path: Path,
) -> None:
    long: list[list[Event]] = [[("x" * 1000 + str(each), 0, 1, 0, each)] for each in range(4)]
    files = only_bucket(tmp_path, long, bytes_max=1500)[-1].files
    assert len(files) == 4, "each is full"
    work = BucketJoin(str(tmp_path), LAYOUT, {0: [*files]}, 5, 1, bytes_max=2500)
    (found,) = work.run(Rows(LAYOUT, folded([("short", 0, 1, 0, 4)])))
    assert (len(found.replaced), found.row_count) == (2, 3), "a third one has no room"


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
