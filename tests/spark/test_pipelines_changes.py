"""Every target alike: the changes between two positions, each once, or a refusal by name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deltalake import DeltaTable

from tests.spark.followed_changes import Mirror, expect_exact_changes, followed_under_kills
from tests.spark.tables_by_value import CLUSTER, LAYOUT, Event, batch, folded, ranged
from tests.spark.test_pipelines_target import opened, prepared
from waltz.errors import ChangesMissingError, ConfigurationError, CorruptionError, NotFoundError
from waltz.spark import open_changes
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.row_changes import Position
from waltz.spark.pipelines.table_store import Column, Layout, Rows, TableStore
from waltz.spark.pipelines.tables import PLACES
from waltz.types import PartitionId, TransactionId

T = LAYOUT.definition
WIDTH = len(T.keys)
KINDS = (TableStore, DeltaTables, IcebergTables)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableStore]:
    with prepared(request.param, tmp_path / "target") as made:
        yield made


def place_of(store: TableStore) -> Position:
    """Return the position of now."""
    (commit,) = store.changes(T, None)
    return commit.position


def read(store: TableStore, after: Position | None) -> list[Any]:
    return [list(each.changes) for each in store.changes(T, after)]


def marks(*found: int) -> dict[PartitionId, TransactionId]:
    return {PartitionId(each): TransactionId(mark) for each, mark in enumerate(found)}


def test_partitions_advance_by_themselves_and_a_commit_may_change_nothing(
    store: TableStore,
) -> None:
    chance = random.Random(3)
    ends, events = [0, 0, 0], list[Event]()
    for _ in range(6):
        chosen = chance.sample(range(3), chance.randrange(1, 3))
        ranges, fresh = [], list[Event]()
        for partition in chosen:
            first, end = ends[partition], ends[partition] + chance.randrange(1, 4)
            ends[partition] = end
            ranges.append(ranged(first, end, partition))
            for each in range(first, end):
                if chance.random() < 0.6:
                    key = chance.choice([None, "", "k"]), chance.choice([None, 0])
                    fresh.append((*key, chance.choice([None, -1, 2]), partition, each))
        events += fresh
        store.add(batch(fresh, ranges))
    store.add(batch([], [ranged(ends[0], ends[0] + 1)]))

    def truth_at(reached: Mapping[Any, int]) -> list[Any]:
        return folded([each for each in events if each[4] < reached.get(each[3], 0)])

    assert expect_exact_changes(store, T, truth_at) == 7
    before_last = [
        each.position for each in store.changes(T, Position(place_of(store).table_id, {}))
    ]
    assert read(store, before_last[-2]) == [[]]


def test_changes_that_were_tidied_away_are_refused_and_later_ones_are_told(
    store: TableStore,
) -> None:
    old = place_of(store)
    for number in range(3):
        store.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    now = place_of(store)
    found = {each.table: each for each in store.tidy(0, delete=False)}
    assert len(read(store, old)) == 3, "it was only asked what would be deleted"
    lake = isinstance(store, LakeTables)
    assert (found["t"].changes, bool(found["t"].files)) == (0 if lake else 3, lake)
    assert {each.table: each for each in store.tidy(168, delete=True)}["t"].changes == 0
    assert len(read(store, old)) == 3, "they are young"
    store.tidy(0, delete=True)
    with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*tidied away.*Read the table a"):
        read(store, old)
    assert read(store, now) == []
    store.add(batch([("k", 0, 1, 0, 3)], [ranged(3, 4)]))
    ((change,),) = read(store, now)
    assert (change.kind, change.before[2], change.after[2]) == ("update", 3, 4)


def test_a_position_that_is_none_of_this_table_is_refused_by_name(store: TableStore) -> None:
    start = place_of(store)
    store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
    now = place_of(store)
    assert (start.marks, now.marks) == ({}, {0: 5})
    assert read(store, Position.from_json(now.to_json())) == []
    refused = (
        (replace(now, marks=marks(9)), "has partition 0 to 4, the position to 8: .*put back"),
        (replace(now, marks=marks(5, 1)), "has partition 1 to -1, the position to 0: .*put back"),
        (replace(now, marks=marks(3)), "no commit that ended at the marks"),
        (replace(now, table_id=UUID(int=7)), "not the table of the position.*rebuilt"),
    )
    for position, text in refused:
        with pytest.raises(ChangesMissingError, match=rf"^WALTZ-2018 .*{text}.*Read the table a"):
            read(store, position)


def test_a_table_made_anew_or_of_another_history_has_none_of_the_old_positions(
    store: TableStore, tmp_path: Path
) -> None:
    kind = type(store)
    path = store.directory if isinstance(store, LakeTables) else store.path
    store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))
    old = place_of(store)
    store.add(replace(batch([("k", 0, 7, 0, 1)], [ranged(1, 2)]), history=UUID(int=2)))
    with pytest.raises(ChangesMissingError, match=r"the log was restored"):
        read(store, old)
    restored = place_of(store)
    store.add(replace(batch([("k", 0, 7, 0, 2)], [ranged(2, 3)]), history=UUID(int=2)))
    assert len(read(store, restored)) == 1
    (tmp_path / "scratch").mkdir()
    with kind(tmp_path / "scratch" / "t", create=True) as fresh:
        fresh.prepare(CLUSTER, "definition", [LAYOUT])
        fresh.add(batch_of_one([("k", 0, 7, 0, 0)], 3))
        store.replace_by(fresh)
    with opened(kind, path) as rebuilt:
        rebuilt.prepare(CLUSTER, "definition", [LAYOUT])
        with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*rebuilt"):
            read(rebuilt, restored)
        now = place_of(rebuilt)
        rebuilt.add(batch_of_one([("k", 0, 1, 0, 3)], 4, first=3))
        ((change,),) = read(rebuilt, now)
        assert change.before[2:4] == (1, 7)


def batch_of_one(events: list[Event], end: int, first: int = 0) -> Any:
    """Return a batch of the table `t` alone."""
    return replace(batch([], [ranged(first, end)]), tables=[Rows(LAYOUT, folded(events))])


def test_what_another_program_has_written_comes_with_the_next_commit(store: TableStore) -> None:
    rows = [(str(each), 0, 1, 0, each) for each in range(5)]
    store.add(batch(rows, [ranged(0, 5)]))
    mirror = Mirror(WIDTH)
    for commit in store.changes(T, None):
        mirror.take(commit)
    if isinstance(store, DeltaTables):
        DeltaTable(store.directory / "t").delete("a = '3' OR a = '4'")
    elif isinstance(store, IcebergTables):
        store._format.opened("t").delete("a = '3' or a = '4'")
    else:
        with store._transaction() as database:
            database.execute("DELETE FROM t WHERE a = '3'")
            database.execute("UPDATE t SET a = 'x' WHERE a = '4'")
            database.execute("UPDATE t SET the_sum = the_sum")
    assert read(store, mirror.position) == [], "of a pipeline's commits there is none"
    if isinstance(store, LakeTables):
        ((*whole,),) = read(store, None)
        assert {each.after for each in whole} == set(mirror.rows.values()), "as it was committed"
    store.add(batch([("0", 0, 1, 0, 5)], [ranged(5, 6)]))
    for commit in store.changes(T, mirror.position):
        mirror.take(commit)
    assert mirror.rows == {row[:WIDTH]: row for row in store.rows(LAYOUT)}
    assert ("3", 0) not in mirror.rows
    assert ("4", 0) not in mirror.rows


def test_a_delta_log_without_its_old_entries_is_refused(tmp_path: Path) -> None:
    with prepared(DeltaTables, tmp_path / "target") as store:
        assert isinstance(store, DeltaTables)
        places = [place_of(store)]
        for number in range(3):
            store.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
            places.append(place_of(store))
            if number == 1:
                DeltaTable(store.directory / "t").create_checkpoint()
        for each in range(2):
            (store.directory / "t" / "_delta_log" / f"{each:020}.json").unlink()
        for gone in places[:2]:
            with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*tidied away"):
                read(store, gone)
        assert [len(read(store, each)) for each in places[2:]] == [1, 0]


def test_a_damaged_file_is_no_reason_to_read_the_table_anew(tmp_path: Path) -> None:
    with prepared(DeltaTables, tmp_path / "target") as store:
        assert isinstance(store, DeltaTables)
        store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))
        (path,) = (store.directory / "t").glob("waltz_bucket=*/*")
        path.write_bytes(b"PAR1 not at all")
        with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*part-000000001"):
            read(store, None)


DEFINED = """\
pipeline: tables
cluster: 127.0.0.1:7100
target: {}
tables:
  t: {{keys: {{a: a}}, measures: {{n: count(*)}}}}
"""
SMALL = ("TEXT", "INTEGER", *("INTEGER" for _ in PLACES))


@pytest.mark.parametrize("target", ["tables.db\nchanges: 10", "delta:tables", "iceberg:tables"])
def test_a_program_follows_a_table_by_the_file_of_the_definition(
    tmp_path: Path, target: str
) -> None:
    from waltz.spark.pipelines.open_tables import open_tables

    file = tmp_path / "pipeline.yaml"
    file.write_text(DEFINED.format(target))
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 .*run the pipeline"):
        open_changes(file, "t")
    definition = parse_definition(file.read_text(), directory=tmp_path)
    assert definition.tables is not None
    (table,) = definition.tables.tables
    names = ("a", "n", *PLACES)
    layout = Layout(table, tuple(map(Column, names, SMALL)))
    with open_tables(definition, create=True) as store:
        store.prepare(CLUSTER, definition.tables.fingerprint(), [layout])
        taken = replace(batch([], [ranged(0, 1)]), tables=[Rows(layout, [("x", 1, 0, 0, 0, 0)])])
        store.add(taken)
    with open_changes(str(file), "t") as feed:
        assert (feed.keys, feed.columns) == (("a",), names)
        for commit in feed.after(None):
            assert [each.after for each in commit.changes] == [("x", 1, 0, 0, 0, 0)]
        assert list(feed.after(commit.position)) == []
    with pytest.raises(ConfigurationError, match=r"has no table u; it has t"):
        open_changes(file, "u")
    file.write_text("pipeline: archive\ncluster: 127.0.0.1:7100\ntarget: tables\n")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1007 .*only tables have changes"):
        open_changes(file, "t")


@pytest.mark.processes
def test_no_change_is_missing_or_doubled_after_a_process_was_killed(tmp_path: Path) -> None:
    # Of Delta and Iceberg tables `test_pipelines_lake_tables.py` shows the same.
    followed_under_kills(TableStore, tmp_path / "target", kills=3, batches=40)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_no_change_is_missing_or_doubled_after_many_kills(
    tmp_path: Path, kind: type[TableStore]
) -> None:
    followed_under_kills(
        kind, tmp_path / "target", kills=25, batches=400 if kind is TableStore else 80
    )
