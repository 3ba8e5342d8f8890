"""Every open format alike: what a directory, a plan and a death come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.shares import one_in
from tests.spark.followed_changes import followed_under_kills
from tests.spark.killed_tables import PER_BATCH, event
from tests.spark.tables_by_value import CLUSTER, LAYOUTS, batch, ranged
from tests.spark.test_pipelines_target import (
    Killed,
    MortalDelta,
    MortalIceberg,
    MortalLake,
    contents,
    prepared,
    restored,
    truth,
)
from waltz.errors import (
    ConfigurationError,
    HistoryChangedError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.table_store import TableStore

Kind = type[MortalLake]


@pytest.fixture(params=[MortalDelta, MortalIceberg])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def files_of(store: LakeTables[Any, Any], name: str) -> list[Any]:
    files = store._format.files(store._format.opened(name))
    return [each for found in files.values() for each in found]


def test_a_verification_waits_for_the_batch_that_a_stopped_run_has_begun(
    tmp_path: Path, kind: Kind
) -> None:
    with prepared(kind, tmp_path / "target") as store:
        assert isinstance(store, MortalLake)
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


def test_the_number_of_buckets_is_that_of_the_first_run_until_a_rebuild(
    tmp_path: Path, kind: Kind
) -> None:
    path = tmp_path / "target"
    with kind(path, create=True, buckets=3) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        events = [(str(each), 0, 1, 0, each) for each in range(100)]
        store.add(batch(events, [ranged(0, 100)]))
        assert len(files_of(store, "t")) == 3
    with kind(path, create=True) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        store.add(batch([("5", 0, 1, 0, 100)], [ranged(100, 101)]))
        assert contents(store) == truth([*events, ("5", 0, 1, 0, 100)])
    with (
        kind(path, create=True, buckets=4) as store,
        pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*of 3 buckets, .*says 4; .*rebuild"),
    ):
        store.prepare(CLUSTER, "definition", LAYOUTS)


def test_a_directory_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, kind: Kind
) -> None:
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 there is no database"):
        kind(tmp_path / "none", create=False)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("dear")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*no pipeline made"):
        kind(tmp_path / "letters", create=True)
    assert [each.name for each in (tmp_path / "letters").iterdir()] == ["one.txt"]


def test_a_run_that_is_killed_while_it_makes_its_target_is_run_again(
    tmp_path: Path, kind: Kind
) -> None:
    with kind(tmp_path / "target", create=True, buckets=3) as store:
        TableStore.prepare(store, CLUSTER, "definition", ())  # and no table is made after it
    with kind(tmp_path / "target", create=True, buckets=3) as store:
        store.expect_history(restored(UUID(int=2), 4))
        assert (store.planned(), store.buckets()) == ({}, 3)
        with store.snapshot():
            assert store.marks() == {}
        store.prepare(CLUSTER, "definition", LAYOUTS)
        store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
        assert contents(store) == truth([("k", 0, 7, 0, 0)])


def test_what_was_put_aside_is_kept_next_to_the_tables(tmp_path: Path, kind: Kind) -> None:
    aside = [(0, 1, 9, b"x"), (0, 5, 9, None)]
    with prepared(kind, tmp_path / "target") as store:
        store.add(replace(batch([], [ranged(0, 6)]), undecodable=aside))
        assert store.undecodable(0, 0, 6) == aside
        assert store.last_mentioned("waltz_undecodable") == [(0, 5)]
        assert contents(store) == [[], []]


@pytest.mark.processes
@pytest.mark.parametrize("kind", one_in(2, [MortalDelta, MortalIceberg]))
def test_a_process_killed_at_any_moment_leaves_each_transaction_counted_once_and_told_once(
    tmp_path: Path, kind: Kind
) -> None:
    path, batches = tmp_path / "target", 12
    followed_under_kills(kind, path, kills=4, batches=batches)
    end = batches * PER_BATCH
    with kind(path, create=False) as store, store.snapshot():
        assert contents(store) == truth([event(each) for each in range(end)])
        assert store.marks() == {0: end}
        ((count, _),) = store.blocks().values()
        assert count == end
        tables = store._format
        found = [tables.batches(tables.opened(each)) for each in tables.names()]
        assert found == [batches] * 2
