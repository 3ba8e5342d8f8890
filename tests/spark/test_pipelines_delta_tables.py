"""Delta tables: their commits, buckets and files, and what stops them."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clusters import ROOT
from tests.spark.killed_tables import PER_BATCH, event
from tests.spark.tables_by_value import (
    CLUSTER,
    LAYOUT,
    LAYOUTS,
    batch,
    ranged,
)
from tests.spark.test_pipelines_target import (
    Killed,
    MortalDelta,
    contents,
    prepared,
    restored,
    truth,
)
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.pipelines.delta_join import BUCKET
from waltz.spark.pipelines.delta_tables import BUCKETS, DeltaTables, _files


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


def test_a_verification_waits_for_the_batch_that_a_stopped_run_has_begun(tmp_path: Path) -> None:
    with prepared(MortalDelta, tmp_path / "target") as store:
        assert isinstance(store, MortalDelta)
        taken = batch([("k", 0, 7, 0, 0)], [ranged(0, 5)])
        store.steps = 6  # one table has the batch
        with pytest.raises(Killed):
            store.add(taken)
        assert (store.marks(), store.planned()) == ({}, {0: 5})
        with (
            pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*run the pipeline to finish"),
            store.snapshot(),
        ):
            pass
        with pytest.raises(HistoryChangedError):
            store.expect_history(restored(UUID(int=2), 4))
        longer = batch([("k", 0, 7, 0, 0)], [ranged(0, 6)])
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*begun a batch with other"):
            store.add(longer)
        store.add(taken)
        with store.snapshot():
            assert contents(store) == truth([("k", 0, 7, 0, 0)])


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
        delta._delta_errors_named(),
    ):
        delta._commit(stale, LAYOUT, _files(stale), [], 2, [ranged(5, 6)])
    assert DeltaTable(path).transaction_version("waltz-batch") == 1
    with sqlite3.connect(delta.path) as database:
        database.execute("UPDATE waltz_delta SET number = 0")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* has 1 batches, .*rebuild"):
        delta.add(batch([("k", 0, 7, 0, 5)], [ranged(5, 6)]))


def test_the_number_of_buckets_is_that_of_the_first_run_until_a_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "target"
    with DeltaTables(path, create=True, buckets=3) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        events = [(str(each), 0, 1, 0, each) for each in range(100)]
        store.add(batch(events, [ranged(0, 100)]))
        assert len(DeltaTable(path / "t").file_uris()) == 3
    with DeltaTables(path, create=True) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        store.add(batch([("5", 0, 1, 0, 100)], [ranged(100, 101)]))
        assert contents(store) == truth([*events, ("5", 0, 1, 0, 100)])
    with (
        DeltaTables(path, create=True, buckets=4) as store,
        pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*of 3 buckets, .*says 4; .*rebuild"),
    ):
        store.prepare(CLUSTER, "definition", LAYOUTS)


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


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 there is no database"):
        DeltaTables(tmp_path / "none", create=False)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("dear")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*no pipeline made"):
        DeltaTables(tmp_path / "letters", create=True)
    assert [each.name for each in (tmp_path / "letters").iterdir()] == ["one.txt"]


def test_what_was_put_aside_is_kept_next_to_the_delta_tables(delta: DeltaTables) -> None:
    aside = [(0, 1, 9, b"x"), (0, 5, 9, None)]
    delta.add(replace(batch([], [ranged(0, 6)]), undecodable=aside))
    assert delta.undecodable(0, 0, 6) == aside
    assert delta.last_mentioned("waltz_undecodable") == [(0, 5)]


@pytest.mark.processes
def test_a_process_killed_at_any_moment_leaves_each_transaction_counted_once(
    tmp_path: Path,
) -> None:
    path, batches = tmp_path / "target", 12
    command = (sys.executable, "-m", "tests.spark.killed_tables", str(path), str(batches))
    chance = random.Random(5)
    for _ in range(4):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 3)):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    end = batches * PER_BATCH
    with DeltaTables(path, create=False) as store, store.snapshot():
        assert contents(store) == truth([event(each) for each in range(end)])
        assert store.marks() == {0: end}
        ((count, _),) = store.blocks().values()
        assert count == end
    assert len(list((path / LAYOUT.definition.name / "_delta_log").glob("*.json"))) == batches + 1
