"""The database of derived tables: rows join as if they had come at once, and all or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.tables_by_value import CLUSTER, LAYOUTS, Event, batch, folded, ranged
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.table_store import Batch, BlockFacts, TableStore
from waltz.types import PartitionId, TransactionId


def contents(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute("SELECT * FROM t").fetchall()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with TableStore(tmp_path / "t.db", create=True) as opened:
        opened.prepare(CLUSTER, "definition", LAYOUTS)
        yield opened


values = st.one_of(st.none(), st.integers(-5, 5))


@given(
    events=st.lists(
        st.tuples(st.sampled_from([None, "", "k"]), st.sampled_from([None, 0]), values),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    tmp=st.uuids(),
)
def test_batches_join_to_what_all_at_once_would_be(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], cuts: list[int], tmp: UUID
) -> None:
    placed: list[Event] = [(*each, n % 2, n // 2) for n, each in enumerate(events)]
    path = tmp_path_factory.getbasetemp() / f"{tmp}.db"
    bounds = [0, *sorted(cuts), len(placed)]
    with TableStore(path, create=True) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        for first, end in pairwise(bounds):
            store.add(batch(placed[first:end]))
    assert sorted(contents(path), key=repr) == sorted(folded(placed), key=repr)
    path.unlink()


def test_digests_of_a_block_add_up_in_any_order(store: TableStore, tmp_path: Path) -> None:
    def facts(digest: int) -> BlockFacts:
        return BlockFacts(PartitionId(1), 3, 2, digest)

    for digest in (7, -3, -9):
        store.add(Batch([], [facts(digest)], []))
    with TableStore(tmp_path / "other.db", create=True) as other:
        other.prepare(CLUSTER, "definition", LAYOUTS)
        for digest in (-9, 7, -3):
            other.add(Batch([], [facts(digest)], []))
        assert store.blocks() == other.blocks() == {(1, 3): (6, f"{(1 << 64) - 5:x}")}


def test_a_commit_reads_no_more_blocks_than_it_changes(store: TableStore) -> None:
    def steps_of_a_commit(number: int) -> int:
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return 0

        store._database.set_progress_handler(counted, 1)
        store.add(Batch([], [BlockFacts(PartitionId(0), number, 1, 1)], []))
        store._database.set_progress_handler(None, 0)
        return count

    store.add(Batch([], [BlockFacts(PartitionId(0), each, 1, 1) for each in range(10)], []))
    few = steps_of_a_commit(9)
    store.add(Batch([], [BlockFacts(PartitionId(0), each, 1, 1) for each in range(10, 3000)], []))
    assert steps_of_a_commit(2999) <= few + 20


def test_the_last_transaction_that_rows_mention_and_what_was_put_aside_can_be_read(
    store: TableStore,
) -> None:
    store.add(batch([("k", 0, 7, 0, 4), ("j", 0, 7, 1, 6), ("l", 0, 7, 1, 2)]))
    aside = [(0, 1, 9, b"x"), (0, 5, 9, None), (3, 0, 9, b"")]
    store.add(Batch([], [], [], aside))
    assert sorted(store.last_mentioned("t")) == [(0, 4), (1, 6)]
    assert sorted(store.last_mentioned("waltz_undecodable")) == [(0, 5), (3, 0)]
    assert store.undecodable(0, 1, 5) == [(0, 1, 9, b"x")]
    assert list(store.undecodable_beyond({PartitionId(0): 5})) == aside[1:]


def test_tables_made_anew_take_the_old_ones_place_at_once(
    store: TableStore, tmp_path: Path
) -> None:
    store.add(batch([("old", 0, 1, 0, 0)], [ranged(0, 1)]))
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    before = reader.execute("SELECT * FROM t").fetchall()
    with TableStore(tmp_path / "fresh.db", create=True) as fresh:
        fresh.prepare(CLUSTER, "another definition", LAYOUTS)
        fresh.add(batch([("new", 0, 1, 0, 0)], [ranged(0, 9)]))
        store.replace_by(fresh)
    assert reader.execute("SELECT * FROM t").fetchall() == before
    reader.close()
    assert [row[0] for row in contents(store.path)] == ["new"]
    store.expect(CLUSTER, "another definition")
    assert store.marks() == {0: 9}
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*was replaced meanwhile"):
        store.add(batch([("new", 0, 1, 0, 9)], [ranged(9, 10)]))
    store.prepare(CLUSTER, "another definition", LAYOUTS)
    store.add(batch([("new", 0, 1, 0, 9)], [ranged(9, 10)]))  # keys still tell rows apart
    assert len(contents(store.path)) == 1


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 there is no database"):
        TableStore(tmp_path / "none.db", create=False)
    text = tmp_path / "text"
    text.write_text("not a database at all, but a text that is long enough to be seen as none")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*not a database"):
        TableStore(text, create=True)
    path = tmp_path / "others.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (a)")
    with TableStore(path, create=True) as store:
        with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*no pipeline made"):
            store.prepare(CLUSTER, "definition", LAYOUTS)
        with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*no derived tables"):
            store.expect(CLUSTER)


def test_another_cluster_or_definition_is_refused(store: TableStore) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003 .*of cluster 0"):
        store.prepare(UUID(int=2), "definition", LAYOUTS)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*another definition.*rebuild"):
        store.prepare(CLUSTER, "another", LAYOUTS)
    store.expect(CLUSTER)


def test_tables_beyond_the_point_of_a_restore_are_refused_and_others_follow_on(
    tmp_path: Path,
) -> None:
    """The history is in the database of the marks, and changes with them."""
    path, second = tmp_path / "t.db", UUID(int=2)

    def restored(first: int) -> Histories:
        return Histories(CLUSTER, (LogHistory(second, 0, {PartitionId(0): TransactionId(first)}),))

    def span(first: int, end: int) -> list[TransactionRange]:
        return [TransactionRange(PartitionId(0), TransactionId(first), TransactionId(end))]

    with TableStore(path, create=True) as store:
        store.prepare(CLUSTER, "f", LAYOUTS)
        store.add(batch([("a", 1, 1, 0, 0)], span(0, 5)))
        assert store.history() is None
        store.expect_history(Histories(CLUSTER))
        store.expect_history(restored(5))
        with pytest.raises(HistoryChangedError) as raised:
            store.expect_history(restored(4))
        assert str(raised.value).startswith(f"WALTZ-2017 the database {path} has applied partition")
        assert "Transactions 4 to 4, as" in str(raised.value)
        assert str(raised.value).endswith("with `waltz pipeline rebuild`")
        store.add(replace(batch([("a", 1, 1, 0, 6)], span(5, 9)), history=second))
        assert store.history() == second
        store.expect_history(restored(5))
        with pytest.raises(VersionConflictError):
            store.add(replace(batch([], span(1, 2)), history=UUID(int=3)))
        assert store.history() == second, "it is part of the transaction that failed"
        with sqlite3.connect(path) as database:
            database.execute("UPDATE waltz_history SET history = 'mine'")
        with pytest.raises(ConfigurationError, match=r"WALTZ-2015 .* names the history 'mine'"):
            store.history()


def test_a_log_without_a_restore_leaves_no_trace_in_the_database(tmp_path: Path) -> None:
    """Earlier releases go on with it."""
    with TableStore(tmp_path / "t.db", create=True) as store:
        store.prepare(CLUSTER, "f", LAYOUTS)
        store.add(batch([("a", 1, 1, 0, 0)]))
    with sqlite3.connect(tmp_path / "t.db") as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    assert "waltz_history" not in names


def test_of_a_disk_that_is_full_the_error_says_so_and_the_next_batch_is_taken(
    store: TableStore,
) -> None:
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages + 1}")
    many = [(f"{number:900}", 0, 1, 0, number) for number in range(40)]
    with pytest.raises(CorruptionError, match="database or disk is full"):
        store.add(batch(many, [ranged(0, 40)]))
    store._database.execute("PRAGMA max_page_count = 1000000")
    store.add(batch(many, [ranged(0, 40)]))
    assert len(contents(store.path)) == 40
