"""Tables join others in every target: all at once, whatever dies, and only if they fit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.duck import opened_duck
from tests.spark.stepped import Stepped
from tests.spark.tables_by_value import CLUSTER, LAYOUT, LAYOUTS, Event, folded, ranged
from tests.spark.test_pipelines_target import Killed
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.table_store import Batch, BlockFacts, Joining, Rows, TableStore
from waltz.types import PartitionId

LATE = replace(LAYOUT, definition=replace(LAYOUT.definition, name="late"))
EVENTS: list[Event] = [(f"k{each % 5}", each % 2, each, 0, each) for each in range(20)]
MORE: list[Event] = [("k1", 1, 7, 0, 20), ("new", 0, 7, 0, 21)]
ASIDE = (0, 3, 9, b"x")

Step = Callable[[], None]


class SteppedTables(TableStore):
    """A target that dies at one of the steps of joining, and says no more."""

    steps = -1

    def step(self) -> None:
        self.steps -= 1
        if self.steps == -1:
            raise Killed

    def _note_joined(self, *given: Any) -> None:
        self.step()
        super()._note_joined(*given)
        self.step()


class SteppedDelta(SteppedTables, DeltaTables):
    def _renumber(self, *given: Any) -> None:
        self.step()
        super()._renumber(*given)
        self.step()

    def _put_away(self, *given: Any) -> None:
        super()._put_away(*given)
        self.step()


class SteppedIceberg(SteppedTables, IcebergTables):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        stepped: Any = Stepped(self._format, self.step, before=("hint",))
        self._format = stepped

    def _made_at(self, *given: Any) -> Any:
        self.step()
        made = super()._made_at(*given)
        self.step()
        return made


KINDS = (SteppedTables, SteppedDelta, SteppedIceberg)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[SteppedTables]:
    found: type[SteppedTables] = request.param
    return found


def of(layouts: Any, events: list[Event], aside: Any = (ASIDE,), digest: int = 5) -> Batch:
    """All events as one batch of partition 0, with the place of the last one as its end."""
    first, end = events[0][4], events[-1][4] + 1
    blocks = [BlockFacts(PartitionId(0), 0, end - first, digest)]
    rows = [Rows(each, folded(events)) for each in layouts]
    return Batch([ranged(first, end)], blocks, rows, aside)


def made(kind: type[SteppedTables], path: Path, text: str, layouts: Any, batch: Batch) -> None:
    with kind(path, create=True) as store:
        store.prepare(CLUSTER, text, layouts)
        store.add(batch)


JOINING = Joining(("late",), (), "old", "new", is_compared=True, is_whole=False)


@pytest.fixture
def places(kind: type[SteppedTables], tmp_path: Path) -> tuple[Path, Path]:
    """A target of two batches, and one table of the same transactions in one batch."""
    target, aside = tmp_path / "target", tmp_path / ".target.backfill"
    made(kind, target, "old", LAYOUTS[:1], of(LAYOUTS[:1], EVENTS[:10]))
    with kind(target, create=True) as store:
        store.prepare(CLUSTER, "old", LAYOUTS[:1])
        store.add(of(LAYOUTS[:1], EVENTS[10:], aside=()))
    made(kind, aside, "part", [LATE], of([LATE], EVENTS, digest=10))
    return target, aside


def content(store: TableStore, layout: Any) -> list[Any]:
    return sorted(store.rows(layout), key=repr)


def truth(events: list[Event]) -> list[Any]:
    return sorted(folded(events), key=repr)


def test_a_table_joins_and_goes_on_with_the_others_whatever_dies(
    kind: type[SteppedTables], places: tuple[Path, Path]
) -> None:
    target, aside = places
    for steps in range(12):
        with kind(target, create=True) as store, kind(aside, create=True) as fresh:
            store.steps = steps
            with suppress(Killed):
                store.settle()
                if store.definition() == "old":
                    assert store.adopt(fresh, JOINING)
                store.prepare(CLUSTER, "new", [*LAYOUTS[:1], LATE])
                break
    else:
        raise AssertionError("it never joined")
    assert steps >= 2, "it died on the way"
    both = [LAYOUTS[0], LATE]
    with kind(target, create=True) as store:
        store.prepare(CLUSTER, "new", both)
        store.add(of(both, MORE, aside=()))
        with store.snapshot():
            assert [content(store, each) for each in both] == [truth(EVENTS + MORE)] * 2
            assert store.marks() == {0: 22}
            assert store.undecodable(0, 0, 22) == [ASIDE]
        if isinstance(store, LakeTables):
            names = [each.name for each in LATE.columns]
            with opened_duck() as duck:
                assert duck.rows(target / "late", names) == truth(EVENTS + MORE)


def test_a_table_that_changes_takes_the_place_of_the_old_one(
    kind: type[SteppedTables], tmp_path: Path
) -> None:
    target, aside = tmp_path / "target", tmp_path / ".target.backfill"
    old = replace(LATE, columns=LATE.columns[:2] + LATE.columns[-4:])
    old = replace(old, definition=replace(old.definition, measures=()))
    rows = [(*each[:2], *each[-4:]) for each in folded(EVENTS)]
    batch = replace(of([], EVENTS), tables=[Rows(LAYOUTS[0], folded(EVENTS)), Rows(old, rows)])
    made(kind, target, "old", [LAYOUTS[0], old], batch)
    made(kind, aside, "part", [LATE], of([LATE], EVENTS))
    with kind(target, create=True) as store, kind(aside, create=True) as fresh:
        assert store.adopt(fresh, JOINING)
        store.prepare(CLUSTER, "new", [LAYOUTS[0], LATE])
        store.add(of([LAYOUTS[0], LATE], MORE, aside=()))
        assert content(store, LATE) == content(store, LAYOUTS[0]) == truth(EVENTS + MORE)


def test_a_table_that_goes_leaves_the_others(
    kind: type[SteppedTables], places: tuple[Path, Path], tmp_path: Path
) -> None:
    target, aside = places
    with kind(target, create=True) as store, kind(aside, create=True) as fresh:
        assert store.adopt(fresh, JOINING)
    with (
        kind(target, create=True) as store,
        kind(tmp_path / "nothing", create=True) as nothing,
    ):
        nothing.prepare(CLUSTER, "none", ())
        gone = Joining((), ("t",), "new", "late only", is_compared=False, is_whole=False)
        assert store.adopt(nothing, gone)
        store.prepare(CLUSTER, "late only", [LATE])
        store.add(of([LATE], MORE, aside=()))
        assert content(store, LATE) == truth(EVENTS + MORE)
        with pytest.raises(CorruptionError, match="WALTZ-2015"):
            list(store.rows(LAYOUTS[0]))


def test_a_run_with_the_former_definition_goes_on_until_the_table_joins_and_is_refused_then(
    kind: type[SteppedTables], places: tuple[Path, Path]
) -> None:
    target, aside = places
    with (
        kind(target, create=True) as run,
        kind(target, create=True) as store,
        kind(aside, create=True) as fresh,
    ):
        run.prepare(CLUSTER, "old", LAYOUTS[:1])
        run.add(of(LAYOUTS[:1], MORE[:1], aside=()))
        assert not store.adopt(fresh, JOINING), "it is behind"
        fresh.prepare(CLUSTER, "part", [LATE])
        fresh.add(of([LATE], MORE[:1], aside=()))
        assert store.adopt(fresh, JOINING)
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*has another definition"):
            run.add(of(LAYOUTS[:1], MORE[1:], aside=()))
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 "):
            store.adopt(fresh, JOINING)
        assert content(store, LATE) == content(store, LAYOUTS[0]) == truth(EVENTS + MORE[:1])


def test_a_table_of_another_log_or_of_another_decoding_does_not_join(
    kind: type[SteppedTables], places: tuple[Path, Path], tmp_path: Path
) -> None:
    target, _ = places
    for name, batch, error, told in (
        ("log", of([LATE], EVENTS, digest=11), CorruptionError, "WALTZ-2008 partition 0, tran.* 0"),
        (
            "more",
            of([LATE], EVENTS, aside=[ASIDE, (0, 5, 9, b"y")], digest=10),
            ConfigurationError,
            "WALTZ-1009 .*transaction 5, cannot be decoded any more, and is part",
        ),
        (
            "fewer",
            of([LATE], EVENTS, aside=(), digest=10),
            ConfigurationError,
            "WALTZ-1009 .*transaction 3, can be decoded now, and was put aside",
        ),
    ):
        made(kind, tmp_path / name, "part", [LATE], batch)
        with (
            kind(target, create=True) as store,
            kind(tmp_path / name, create=True) as fresh,
            pytest.raises(error, match=f"^{told}"),
        ):
            store.adopt(fresh, JOINING)
        with kind(target, create=True) as store:
            assert (store.definition(), store.undecodable(0, 0, 22)) == ("old", [ASIDE])
            assert content(store, LAYOUTS[0]) == truth(EVENTS)


def test_tables_that_all_come_anew_may_put_aside_less_than_before_and_not_more(
    kind: type[SteppedTables], places: tuple[Path, Path], tmp_path: Path
) -> None:
    target, _ = places
    made(kind, tmp_path / "all", "all", LAYOUTS[:1], of(LAYOUTS[:1], EVENTS, aside=(), digest=10))
    with kind(target, create=True) as store, kind(tmp_path / "all", create=True) as fresh:
        assert store.adopt(fresh, replace(JOINING, names=("t",), is_whole=True))
        assert store.undecodable(0, 0, 22) == []
        assert content(store, LAYOUTS[0]) == truth(EVENTS)
    more = of(LAYOUTS[:1], EVENTS, aside=[(0, 5, 9, b"y")], digest=10)
    made(kind, tmp_path / "more", "more", LAYOUTS[:1], more)
    whole = replace(JOINING, names=("t",), before="new", after="more", is_whole=True)
    with (
        kind(target, create=True) as store,
        kind(tmp_path / "more", create=True) as fresh,
        pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*transaction 5, cannot.*rebuild"),
    ):
        store.adopt(fresh, whole)


def test_a_text_of_the_same_definition_is_noted(
    kind: type[SteppedTables], places: tuple[Path, Path]
) -> None:
    with kind(places[0], create=True) as store:
        store.note_definition("old", "the same")
        assert store.definition() == "the same"
        with pytest.raises(VersionConflictError, match="WALTZ-2016"):
            store.note_definition("old", "another")


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[SteppedDelta]:
    """Delta tables of which one is about to join."""
    made(SteppedDelta, tmp_path / "t", "old", LAYOUTS[:1], of(LAYOUTS[:1], EVENTS))
    made(SteppedDelta, tmp_path / ".t.backfill", "part", [LATE], of([LATE], EVENTS))
    with (
        SteppedDelta(tmp_path / "t", create=True) as store,
        SteppedDelta(tmp_path / ".t.backfill", create=True) as fresh,
    ):
        store.steps = 3
        with suppress(Killed):
            store.adopt(fresh, JOINING)
        yield store


def test_a_verification_waits_for_the_delta_tables_that_are_joining(stopped: SteppedDelta) -> None:
    with (
        pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*while tables joined"),
        stopped.snapshot(),
    ):
        pass
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*while tables joined"):
        list(stopped.changes(LATE.definition, None))
    stopped.settle()
    with stopped.snapshot():
        assert content(stopped, LATE) == truth(EVENTS)
    with sqlite3.connect(stopped.path) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    assert "waltz_joining" not in names, "earlier releases go on with it"
