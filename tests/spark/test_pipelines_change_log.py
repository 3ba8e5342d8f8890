"""The changes of tables in SQLite: their bound, and what begins and ends them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.tables_by_value import CLUSTER, LAYOUT, LAYOUTS, batch, ranged
from waltz.errors import ChangesMissingError, ConfigurationError, LocalProtocolError
from waltz.spark.pipelines.row_changes import Position
from waltz.spark.pipelines.table_store import TableStore

T = LAYOUT.definition


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tables.db"


def prepared(path: Path, changes: int | None) -> TableStore:
    store = TableStore(path, create=True, changes=changes)
    store.prepare(CLUSTER, "definition", LAYOUTS)
    return store


@pytest.fixture
def bounded(path: Path) -> Iterator[TableStore]:
    """Tables of which three changes, and as many commits, are kept."""
    with prepared(path, 3) as store:
        yield store


def add(store: TableStore, first: int, *keys: str) -> None:
    """Take in one transaction for each key."""
    events = [(key, 0, 1, 0, first + number) for number, key in enumerate(keys)]
    store.add(batch(events, [ranged(first, first + len(keys))]))


def place_of(store: TableStore) -> Position:
    (commit,) = store.changes(T, None)
    return commit.position


def sizes(store: TableStore, after: Position) -> list[int]:
    return [len(list(each.changes)) for each in store.changes(T, after)]


def stored(store: TableStore) -> tuple[int, int]:
    """Return the numbers of changes and of commits in the database."""
    with sqlite3.connect(store.path) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {each}").fetchone()[0]
            for each in ("waltz_changes_of_t", "waltz_commits")
        ]
    return counts[0], counts[1]


def test_the_oldest_commits_go_whole_once_there_are_more_changes_than_are_kept(
    bounded: TableStore,
) -> None:
    places = [place_of(bounded)]
    for first, keys in ((0, "ab"), (2, "a"), (3, "b"), (4, "c")):
        add(bounded, first, *keys)
        places.append(place_of(bounded))
    assert stored(bounded) == (3, 3)
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*tidied away"):
        sizes(bounded, places[0])
    assert [sizes(bounded, each) for each in places[1:]] == [[1, 1, 1], [1, 1], [1], []]
    add(bounded, 5, "a", "b")
    assert [sizes(bounded, each) for each in places[3:]] == [[1, 2], [2]]


def test_the_last_commit_is_kept_whole_however_large_it_is(bounded: TableStore) -> None:
    add(bounded, 0, "a")
    now = place_of(bounded)
    add(bounded, 1, *"abcdef")
    assert (sizes(bounded, now), stored(bounded)[0]) == ([6], 6)
    later = place_of(bounded)
    add(bounded, 7, "a")
    assert (sizes(bounded, later), stored(bounded)[0]) == ([1], 1)


def test_commits_that_change_nothing_are_bounded_as_changes_are(bounded: TableStore) -> None:
    places = []
    for number in range(6):
        places.append(place_of(bounded))
        bounded.add(batch([], [ranged(number, number + 1)]))
    assert stored(bounded) == (0, 3)
    assert sizes(bounded, places[3]) == [0, 0, 0]
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*tidied away"):
        sizes(bounded, places[2])


def test_changes_are_kept_from_the_run_that_asks_for_them_until_one_does_not(path: Path) -> None:
    with prepared(path, None) as store:
        add(store, 0, "a")
        with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*keeps no changes; run the"):
            list(store.changes(T, None))
    with prepared(path, 9) as store:
        first = place_of(store)
        add(store, 1, "a")
        assert sizes(store, first) == [1]
        with pytest.raises(ChangesMissingError, match="tidied away"):
            sizes(store, Position(first.table_id, {}))
    with prepared(path, 9) as store:
        assert sizes(store, first) == [1], "a run that goes on keeps them"
    with prepared(path, None) as store:
        add(store, 2, "a")
        names = store._rows("SELECT name FROM sqlite_schema WHERE name LIKE 'waltz_c%'")
        assert names == []
    with prepared(path, 9) as store, pytest.raises(ChangesMissingError, match="not the table"):
        sizes(store, first)


def test_a_table_that_an_earlier_release_has_replaced_is_another_one(path: Path) -> None:
    with prepared(path, 9) as store:
        add(store, 0, "a")
        now = place_of(store)
    with sqlite3.connect(path) as database:
        ((made,), (index,)) = database.execute(
            "SELECT sql FROM sqlite_schema WHERE tbl_name = 't' AND type IN ('table', 'index')"
        ).fetchall()
        for statement in ("DROP TABLE t", made, index):
            database.execute(statement)
    with prepared(path, 9) as store, pytest.raises(ChangesMissingError, match="not the table"):
        sizes(store, now)


def test_the_changes_of_a_commit_are_read_in_their_turn(path: Path) -> None:
    with prepared(path, 9) as store:
        start = place_of(store)
        add(store, 0, "a")
        add(store, 1, "b")
        commits: list[Any] = list(store.changes(T, start))
        with pytest.raises(LocalProtocolError, match="before the next commit is asked for"):
            list(commits[0].changes)


def test_a_reader_may_leave_off_and_ask_again(path: Path) -> None:
    with prepared(path, 9) as store:
        start = place_of(store)
        add(store, 0, "a")
        add(store, 1, "b")
        left = store.changes(T, start)
        assert next(left).position.marks == {0: 1}
        assert sizes(store, start) == [1, 1]
        add(store, 2, "c")
        assert [each.position.marks for each in left] == [{0: 2}], "as of the moment it began"
        other: Any = store.changes(T, start)
        next(other)
    other.close()


def test_readers_see_one_moment_while_runs_commit_and_let_go(bounded: TableStore) -> None:
    start = place_of(bounded)
    add(bounded, 0, "a")
    add(bounded, 1, "b")
    with TableStore(bounded.path, create=False) as reader:
        found = []
        for commit in reader.changes(T, start):
            add(bounded, bounded.marks()[0], *"cdef")  # type: ignore[index]
            found += [each.after[0] for each in commit.changes if each.after is not None]
    assert found == ["a", "b"]
    with pytest.raises(ChangesMissingError, match="tidied away"):
        sizes(bounded, start)


def test_a_clock_that_was_behind_for_a_commit_lets_no_younger_change_be_tidied(path: Path) -> None:
    with prepared(path, 10) as store:
        add(store, 0, "a")
        start = place_of(store)
        add(store, 1, "b")
        add(store, 2, "c")
        with sqlite3.connect(path) as database:
            database.execute("UPDATE waltz_commits SET committed_at = 7 WHERE number = 3")
        assert all(each.changes == 0 for each in store.tidy(24, delete=True))
        assert sizes(store, start) == [1, 1]
