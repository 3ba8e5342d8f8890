"""Delta tables: their commits, buckets and files, and what stops them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.tables_by_value import (
    LAYOUT,
    batch,
    ranged,
)
from tests.spark.test_pipelines_target import (
    Killed,
    MortalDelta,
    contents,
    prepared,
    truth,
)
from waltz.errors import (
    CorruptionError,
    VersionConflictError,
)
from waltz.spark.pipelines.bucket_join import BUCKET
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.lake_tables import BUCKETS


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[DeltaTables]:
    store = prepared(DeltaTables, tmp_path / "target")
    assert isinstance(store, DeltaTables)
    with store:
        yield store


def test_each_commit_of_a_delta_table_says_how_far_it_is_and_touches_few_files(
    delta: DeltaTables,
) -> None:
    delta.add(batch([(str(each), 0, 1, 0, each) for each in range(200)], [ranged(0, 200)]))
    before = set(DeltaTable(delta.directory / "t").file_uris())
    assert len(before) > 50
    delta.add(batch([("7", 0, 1, 0, 200)], [ranged(200, 300)]))
    table = DeltaTable(delta.directory / "t")
    assert len(before - set(table.file_uris())) == 1, "the bucket of the only key"
    assert table.transaction_version("waltz-batch") == 2
    assert table.transaction_version("waltz-mark-0") == 300
    aside = DeltaTable(delta.directory / "positive")
    delta.add(batch([("7", 0, -1, 0, 300)], [ranged(300, 301)]))
    aside.update_incremental()
    assert aside.transaction_version("waltz-mark-0") == 301, "also where no row has changed"


def test_a_table_that_somebody_else_put_back_or_wrote_to_is_refused(delta: DeltaTables) -> None:
    delta.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
    stale = DeltaTable(delta.directory / "t")
    path = delta.directory / "t"
    content = stale.to_pyarrow_table()
    others = pa.array([(content[BUCKET][0].as_py() + 1) % BUCKETS], pa.int32())
    # Into another bucket: delta-rs alone would see no conflict.
    place = content.column_names.index(BUCKET)
    write_deltalake(path, content.set_column(place, BUCKET, others), mode="append")
    with (
        pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*another writer"),
        delta._format_errors_named(),
    ):
        delta._format.commit(stale, LAYOUT, delta._format.files(stale), [], 2, [ranged(5, 6)])
    assert DeltaTable(path).transaction_version("waltz-batch") == 1
    with sqlite3.connect(delta.path) as database:
        database.execute("UPDATE waltz_delta SET number = 0")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* has 1 batches, .*rebuild"):
        delta.add(batch([("k", 0, 7, 0, 5)], [ranged(5, 6)]))


def test_tidying_leaves_the_files_of_the_version_of_now_and_young_ones(tmp_path: Path) -> None:
    with prepared(MortalDelta, tmp_path / "target") as store:
        assert isinstance(store, MortalDelta)
        for number in range(3):
            store.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
        store.steps = 2  # both tables are joined, nothing is planned
        with pytest.raises(Killed):
            store.add(batch([("k", 0, 7, 0, 3)], [ranged(3, 4)]))
        path = store.directory / "t"

        def files() -> set[str]:
            return {str(each.relative_to(path)) for each in path.glob("waltz_bucket=*/*")}

        named = {str(Path(each).relative_to(path)) for each in DeltaTable(path).file_uris()}
        before = files()
        assert (len(before), len(named)) == (4, 1)
        assert [each.files for each in store.tidy(168, delete=True)] == [(), ()]
        (_, found) = store.tidy(0, delete=False)
        assert (found.table, set(found.files)) == ("t", before - named)
        assert found.byte_count == sum((path / each).stat().st_size for each in found.files)
        assert files() == before
        assert store.tidy(0, delete=True)[1] == found
        assert files() == named
        store.steps = -1
        store.add(batch([("k", 0, 7, 0, 3)], [ranged(3, 4)]))
        assert contents(store) == truth([("k", 0, 7, 0, each) for each in range(4)])
