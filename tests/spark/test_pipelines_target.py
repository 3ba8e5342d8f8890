"""Every target alike: batches come to the fold of all, once each, whatever dies in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.followed_changes import Mirror, expect_exact_changes, follow
from tests.spark.stepped import Stepped
from tests.spark.tables_by_value import (
    CLUSTER,
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
    VersionConflictError,
)
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.lake_tables import LakeTables
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


class MortalLake(MortalTables, LakeTables[Any, Any]):
    """Comes before the tables of a format, whose joins and commits become steps."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        stepped: Any = Stepped(
            self._format, self.step, before=("join", "commit"), after=("commit",)
        )
        self._format = stepped

    def _note_plan(self, *given: Any) -> None:
        self.step()
        super()._note_plan(*given)
        self.step()


class MortalDelta(MortalLake, DeltaTables):
    pass


class MortalIceberg(MortalLake, IcebergTables):
    pass


values = st.one_of(st.none(), st.integers(-5, 5))
keys = st.tuples(st.sampled_from([None, "", "k"]), st.sampled_from([None, 0]), values)
KINDS = (MortalTables, MortalDelta, MortalIceberg)


def opened(kind: type[TableStore], path: Path) -> TableStore:
    """Return a target that keeps the changes of its tables."""
    if issubclass(kind, (DeltaTables, IcebergTables)):
        return kind(path, create=True)
    return kind(path, create=True, changes=1000)


def prepared(kind: type[TableStore], path: Path) -> TableStore:
    store = opened(kind, path)
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


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    events=st.lists(keys, min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 11), max_size=3),
    deaths=st.lists(st.integers(0, 10), max_size=3),
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
        store = opened(kind, path)
        assert isinstance(store, MortalTables)
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
    with kind(path, create=False) as followed:
        expect_exact_changes(
            followed, LAYOUTS[0].definition, lambda marks: folded(placed[: marks.get(0, 0)])
        )
        follow(
            Mirror(2),
            followed,
            LAYOUTS[1].definition,
            lambda marks: folded(positive(placed[: marks.get(0, 0)])),
        )


def test_of_two_runs_at_once_one_has_added_and_the_other_is_told(store: TableStore) -> None:
    path = store.directory if isinstance(store, LakeTables) else store.path
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
    path = store.directory if isinstance(store, LakeTables) else store.path
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
    path = store.directory if isinstance(store, LakeTables) else store.path
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


def test_a_batch_whose_log_has_changed_is_dropped_by_every_target(store: TableStore) -> None:
    def restored_meanwhile() -> None:
        raise HistoryChangedError("the log was restored")

    store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))
    before = contents(store)
    read = replace(batch([("k", 0, 7, 0, 1)], [ranged(1, 2)]), confirm=restored_meanwhile)
    with pytest.raises(HistoryChangedError):
        store.add(read)
    assert (contents(store), store.marks(), store.planned()) == (before, {0: 1}, {})
