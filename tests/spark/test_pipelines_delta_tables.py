"""Delta tables and those of SQLite alike: batches come to the fold of all, once each."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clusters import ROOT
from tests.spark.killed_tables import PER_BATCH, event
from tests.spark.tables_by_value import (
    CLUSTER,
    LAYOUT,
    LAYOUTS,
    Event,
    batch,
    folded,
    positive,
    ranged,
)
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.pipelines.delta_tables import BUCKET, BUCKETS, DeltaTables
from waltz.spark.pipelines.table_store import BlockFacts, TableStore
from waltz.types import PartitionId, TransactionId


class Killed(BaseException):
    """Stands for the end of the process."""


class MortalTables(TableStore):
    """A target that dies before or after one of its steps, and says no more."""

    steps = -1
    """Steps until death; negative: it lives."""

    def step(self) -> None:
        self.steps -= 1
        if self.steps == -1:
            raise Killed

    def _add_facts(self, *given: Any) -> None:
        self.step()
        super()._add_facts(*given)


class MortalDelta(MortalTables, DeltaTables):
    def _note_plan(self, *given: Any) -> None:
        self.step()
        super()._note_plan(*given)
        self.step()

    def _commit(self, *given: Any) -> None:
        self.step()
        super()._commit(*given)
        self.step()


KINDS = (MortalTables, MortalDelta)


def prepared(kind: type[TableStore], path: Path) -> TableStore:
    store = kind(path, create=True)
    store.prepare(CLUSTER, "definition", LAYOUTS)
    return store


def contents(store: TableStore) -> list[Any]:
    return [sorted(store.rows(each), key=repr) for each in LAYOUTS]


def truth(events: Sequence[Event]) -> list[Any]:
    return [sorted(folded(each), key=repr) for each in (events, positive(events))]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableStore]:
    with prepared(request.param, tmp_path / "target") as opened:
        yield opened


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[DeltaTables]:
    store = prepared(DeltaTables, tmp_path / "target")
    assert isinstance(store, DeltaTables)
    with store:
        yield store


values = st.one_of(st.none(), st.integers(-5, 5))
keys = st.tuples(st.sampled_from([None, "", "k"]), st.sampled_from([None, 0]), values)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    events=st.lists(keys, min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 11), max_size=3),
    deaths=st.lists(st.integers(0, 8), max_size=3),
    place=st.uuids(),
)
def test_batches_and_deaths_come_to_what_all_at_once_would_be(
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[MortalTables],
    events: list[Any],
    cuts: list[int],
    deaths: list[int],
    place: UUID,
) -> None:
    placed: list[Event] = [(*each, 0, n) for n, each in enumerate(events)]
    path = tmp_path_factory.mktemp("target") / str(place)
    bounds = sorted({0, len(placed), *(each for each in cuts if each < len(placed))})
    left = list(deaths)
    first = 0
    while first < len(placed):
        store = kind(path, create=True)
        with store:
            store.prepare(CLUSTER, "definition", LAYOUTS)
            store.steps = left.pop() if left else -1
            first = store.marks().get(PartitionId(0), 0)
            # The log may have grown since a run died: only its plan says where its batch ends.
            wanted = next(each for each in bounds if each > first) if left else len(placed)
            end = store.planned().get(PartitionId(0), wanted)
            rows = placed[first:end]
            try:
                block = BlockFacts(PartitionId(0), 0, len(rows), sum(each[4] for each in rows))
                store.add(batch(rows, [ranged(first, end)], [block]))
            except Killed:
                continue
            first = end
    with kind(path, create=False) as found, found.snapshot():
        assert contents(found) == truth(placed)
        assert found.marks() == {0: len(placed)}
        assert found.planned() == {}
        assert found.blocks() == {(0, 0): (len(placed), f"{sum(range(len(placed))):x}")}


def test_of_two_runs_at_once_one_has_added_and_the_other_is_told(store: TableStore) -> None:
    path = store.directory if isinstance(store, DeltaTables) else store.path
    with type(store)(path, create=False) as other:
        taken = batch([("k", 0, 7, 0, 0)], [ranged(0, 5)])
        store.add(taken)
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*partition 0 to 4, not to"):
            other.add(taken)
        other.add(batch([("k", 0, 1, 0, 5)], [ranged(5, 6)]))
    assert contents(store) == truth([("k", 0, 7, 0, 0), ("k", 0, 1, 0, 5)])
    assert store.marks() == {0: 6}


def test_a_batch_that_fails_leaves_nothing_behind(store: TableStore) -> None:
    greatest = (1 << 63) - 1
    store.add(batch([("k", 0, greatest, 0, 0)], [ranged(0, 1)]))
    before = contents(store)
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*REAL value in INTEGER column"):
        store.add(batch([("j", 0, 1, 0, 1), ("k", 0, 1, 0, 2)], [ranged(1, 3)]))
    assert contents(store) == before
    assert (store.marks(), store.planned()) == ({0: 1}, {})


def test_what_is_read_in_a_snapshot_is_of_one_moment(store: TableStore) -> None:
    path = store.directory if isinstance(store, DeltaTables) else store.path
    store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
    with store.snapshot():
        before = store.marks(), contents(store), store.last_mentioned("t")
        with type(store)(path, create=False) as run:
            run.add(batch([("k", 0, 7, 0, 9)], [ranged(5, 10)]))
        assert (store.marks(), contents(store), store.last_mentioned("t")) == before
    assert store.marks() == {0: 10}
    assert store.last_mentioned("t") == [(0, 9)]


def test_another_cluster_definition_or_history_is_refused_by_every_target(
    store: TableStore,
) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003 .*of cluster 0"):
        store.prepare(UUID(int=2), "definition", LAYOUTS)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*another definition.*rebuild"):
        store.prepare(CLUSTER, "another", LAYOUTS)
    store.add(batch([("a", 1, 1, 0, 0)], [ranged(0, 5)]))
    histories = restored(UUID(int=2), 4)
    with pytest.raises(HistoryChangedError, match=r"^WALTZ-2017 .*Transactions 4 to 4"):
        store.expect_history(histories)
    store.expect_history(restored(UUID(int=2), 5))


def restored(history: UUID, first: int) -> Histories:
    return Histories(CLUSTER, (LogHistory(history, 0, {PartitionId(0): TransactionId(first)}),))


def test_tables_made_anew_take_the_old_ones_place(store: TableStore, tmp_path: Path) -> None:
    kind = type(store)
    path = store.directory if isinstance(store, DeltaTables) else store.path
    store.add(batch([("old", 0, 1, 0, 0)], [ranged(0, 1)]))
    (tmp_path / "scratch").mkdir()
    with kind(path, create=False) as run, kind(tmp_path / "scratch" / "t", create=True) as fresh:
        fresh.prepare(CLUSTER, "another definition", LAYOUTS)
        fresh.add(batch([("new", 0, 1, 0, 0)], [ranged(0, 9)]))
        store.replace_by(fresh)
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*run again"):
            run.add(batch([("old", 0, 1, 0, 1)], [ranged(1, 2)]))
    with kind(path, create=False) as found:
        found.expect(CLUSTER, "another definition")
        found.add(batch([("new", 0, 1, 0, 9)], [ranged(9, 10)]))  # keys still tell rows apart
        assert contents(found) == truth([("new", 0, 1, 0, 0), ("new", 0, 1, 0, 9)])
        assert found.marks() == {0: 10}


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
        store.steps = 4  # one table has the batch
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
        delta._commit(stale, path, content[BUCKET].to_pylist(), content, 2, [ranged(5, 6)])
    assert DeltaTable(path).transaction_version("waltz-batch") == 1
    with sqlite3.connect(delta.path) as database:
        database.execute("UPDATE waltz_delta SET number = 0")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .* has 1 batches, .*rebuild"):
        delta.add(batch([("k", 0, 7, 0, 5)], [ranged(5, 6)]))


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
