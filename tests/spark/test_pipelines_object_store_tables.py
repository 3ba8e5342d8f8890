"""Delta tables in a bucket: runs that share nothing else, and what a bucket does to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buckets import bad_store, bucket_url, object_store
from tests.shares import one_in
from tests.spark.followed_changes import Mirror, expect_exact_changes, follow
from tests.spark.stepped import Stepped
from tests.spark.tables_by_value import CLUSTER, LAYOUTS, Event, batch, folded, ranged
from tests.spark.test_pipelines_target import Killed, MortalLake, contents, keys, truth
from waltz.archive.archive_target import open_target
from waltz.errors import (
    ArchiveUnreachableError,
    ChangesMissingError,
    ConfigurationError,
    CorruptionError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.pipelines.object_store_tables import ObjectStoreTables
from waltz.spark.pipelines.stored_states import STATES, STATES_KEPT
from waltz.spark.pipelines.table_store import BlockFacts
from waltz.types import PartitionId

__all__ = ["bucket_url", "object_store"]

OPTIONS = {"allow_http": "true"}


class MortalObjectStore(MortalLake, ObjectStoreTables):
    """Tables in a bucket whose run dies before or after one of its steps."""

    meanwhile: Callable[[], None] | None = None
    """What another run does once this one has computed its files."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        states: Any = Stepped(self._states, self.step, before=("publish",), after=("publish",))
        self._states = states

    def _note_plan(self, *given: Any) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        super()._note_plan(*given)


def prepared(url: str) -> MortalObjectStore:
    store = MortalObjectStore(url, create=True, buckets=3)
    store.prepare(CLUSTER, "definition", LAYOUTS)
    return store


@pytest.mark.parametrize("examples", one_in(2, [6, 20]))
def test_batches_and_deaths_come_to_what_all_at_once_would_be(
    bucket_url: str, examples: int
) -> None:
    """No run has anything but the bucket from the run before it."""

    @settings(max_examples=examples)
    @given(
        events=st.lists(keys, min_size=1, max_size=12),
        cuts=st.lists(st.integers(1, 11), max_size=3),
        deaths=st.lists(st.integers(0, 14), max_size=3),
    )
    def come_to_the_same(events: list[Any], cuts: list[int], deaths: list[int]) -> None:
        expect_the_fold(bucket_url, events, cuts, deaths)

    come_to_the_same()


def expect_the_fold(bucket_url: str, events: list[Any], cuts: list[int], deaths: list[int]) -> None:
    url = f"{bucket_url}/{uuid4()}"
    placed: list[Event] = [(*each, 0, n) for n, each in enumerate(events)]
    bounds = sorted({0, len(placed), *(each for each in cuts if each < len(placed))})
    left = list(deaths)
    first = 0
    while first < len(placed):
        with prepared(url) as store:
            store.steps = left.pop() if left else -1
            first = store.marks().get(PartitionId(0), 0)
            wanted = next((each for each in bounds if each > first), first)
            end = store.planned().get(PartitionId(0), wanted if left else len(placed))
            if first == len(placed):
                break
            rows = placed[first:end]
            block = BlockFacts(PartitionId(0), 0, len(rows), sum(each[4] for each in rows))
            try:
                store.add(batch(rows, [ranged(first, end)], [block]))
            except Killed:
                continue
            first = end
    with ObjectStoreTables(url, create=False) as found, found.snapshot():
        assert contents(found) == truth(placed)
        assert found.marks() == {0: len(placed)}
        assert found.planned() == {}
        assert found.blocks() == {(0, 0): (len(placed), f"{sum(range(len(placed))):x}")}


def test_other_programs_read_the_tables_and_find_the_marks(bucket_url: str) -> None:
    with prepared(bucket_url) as store:
        store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
    table = DeltaTable(f"{bucket_url}/t", storage_options=OPTIONS)
    assert table.to_pyarrow_table().column("the_sum").to_pylist() == [7]
    assert table.transaction_version("waltz-mark-0") == 5


def test_changes_in_a_bucket_are_told_from_the_newest_state_on_until_they_are_tidied_away(
    bucket_url: str,
) -> None:
    events: list[Event] = [("k", 0, 7, 0, 0), ("k", 0, 1, 1, 0), ("j", 0, 1, 1, 1)]

    def truth_at(marks: Mapping[Any, int]) -> list[Any]:
        return folded([each for each in events if each[4] < marks.get(each[3], 0)])

    with prepared(bucket_url) as store, ObjectStoreTables(bucket_url, create=False) as reader:
        mirror = Mirror(2)
        assert follow(mirror, reader, LAYOUTS[0].definition, truth_at) == 1
        store.add(batch(events[:1], [ranged(0, 1)]))
        store.add(batch(events[1:], [ranged(0, 2, partition=1)]))
        assert expect_exact_changes(reader, LAYOUTS[0].definition, truth_at) == 2
        store.tidy(0, delete=True)
        with pytest.raises(ChangesMissingError, match=r"^WALTZ-2018 .*tidied away"):
            follow(mirror, reader, LAYOUTS[0].definition, truth_at)


def test_of_two_runs_one_adds_and_the_other_is_told(bucket_url: str) -> None:
    taken = batch([("k", 0, 7, 0, 0)], [ranged(0, 5)])
    with prepared(bucket_url) as one, ObjectStoreTables(bucket_url, create=False) as other:

        def add_meanwhile() -> None:
            other.add(taken)

        one.meanwhile = add_meanwhile
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*run again"):
            one.add(taken)
        one.meanwhile = None
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*partition 0 to 4, not to"):
            one.add(taken)
        one.add(batch([("k", 0, 1, 0, 5)], [ranged(5, 6)]))
        with other.snapshot():
            assert contents(other) == truth([("k", 0, 7, 0, 0), ("k", 0, 1, 0, 5)])
            assert other.marks() == {0: 6}


def test_a_run_that_slept_while_others_made_and_removed_its_next_state_is_told(
    bucket_url: str,
) -> None:
    def others() -> None:
        with ObjectStoreTables(bucket_url, create=False) as other:
            for number in range(STATES_KEPT):
                other.add(batch([("k", 0, 1, 0, number)], [ranged(number, number + 1)]))

    with prepared(bucket_url) as store:
        store.meanwhile = others
        with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 "):
            store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))
    with ObjectStoreTables(bucket_url, create=False) as found, found.snapshot():
        assert found.marks() == {0: STATES_KEPT}
        assert contents(found) == truth([("k", 0, 1, 0, each) for each in range(STATES_KEPT)])
    states = list(open_target(bucket_url).list(STATES))
    assert len(states) == STATES_KEPT


def test_a_snapshot_within_a_batch_is_of_the_moment_before_it(bucket_url: str) -> None:
    """No run waits for another one: tables have their versions."""
    with prepared(bucket_url) as store:
        store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 5)]))
        store.steps = 7  # planned, and one table has the batch
        with pytest.raises(Killed):
            store.add(batch([("k", 0, 1, 0, 5)], [ranged(5, 9)]))
    numbers = [
        DeltaTable(f"{bucket_url}/{each}", storage_options=OPTIONS).transaction_version(
            "waltz-batch"
        )
        for each in ("t", "positive")
    ]
    assert sorted(numbers, key=int) == [1, 2]  # type: ignore[arg-type]
    with ObjectStoreTables(bucket_url, create=False) as found:
        with found.snapshot():
            assert (found.marks(), found.planned()) == ({0: 5}, {0: 9})
            assert contents(found) == truth([("k", 0, 7, 0, 0)])
        found.add(batch([("k", 0, 1, 0, 5)], [ranged(5, 9)]))
        with found.snapshot():
            assert contents(found) == truth([("k", 0, 7, 0, 0), ("k", 0, 1, 0, 5)])


def test_a_table_that_was_put_back_is_refused(bucket_url: str) -> None:
    with prepared(bucket_url) as store:
        for each in range(2):
            store.add(batch([("k", 0, 7, 0, each)], [ranged(each, each + 1)]))
        objects = open_target(bucket_url)
        objects.delete("t/_delta_log/00000000000000000002.json")
        with (
            pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*/t has 1 batches"),
            store.snapshot(),
        ):
            pass
        with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*/t has 1 batches"):
            store.add(batch([("k", 0, 7, 0, 2)], [ranged(2, 3)]))
        objects.put(f"{STATES}/nothing", b"")
        with pytest.raises(CorruptionError, match=r"^WALTZ-2015 .*nothing is no state"):
            store.add(batch([("k", 0, 7, 0, 2)], [ranged(2, 3)]))


def test_a_file_that_is_gone_is_named_and_not_taken_for_empty(bucket_url: str) -> None:
    with prepared(bucket_url) as store:
        store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))
        objects = open_target(bucket_url)
        for each in list(objects.list("t")):
            if each.path.endswith(".parquet"):
                objects.delete(each.path)
        with pytest.raises(CorruptionError, match="names a file that is not there"):
            store.add(batch([("k", 0, 7, 0, 1)], [ranged(1, 2)]))
        assert store.planned() == {}


def test_a_prefix_without_tables_or_of_something_else_is_refused(bucket_url: str) -> None:
    with pytest.raises(NotFoundError, match=r"^WALTZ-2015 .*has no tables; run the pipeline"):
        ObjectStoreTables(bucket_url, create=False)
    open_target(bucket_url).put("something", b"else")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*that no pipeline made"):
        ObjectStoreTables(bucket_url, create=True)


def test_tidying_names_and_removes_what_no_version_needs(bucket_url: str) -> None:
    with prepared(bucket_url) as store:
        for each in range(3):
            store.add(batch([("k", 0, 7, 0, each)], [ranged(each, each + 1)]))
        open_target(bucket_url).put("t/waltz_bucket=0/part-9-orphan.zstd.parquet", b"left")
        named = {each.table: each for each in store.tidy(0, delete=False)}
        assert len(named["t"].files) == 3
        assert named["t"].byte_count > 4
        assert store.tidy(0, delete=True)[1] == named["t"]
        assert [each.files for each in store.tidy(0, delete=False)] == [(), ()]
        with store.snapshot():
            assert contents(store) == truth([("k", 0, 7, 0, each) for each in range(3)])


@pytest.mark.long
def test_a_bucket_that_fails_now_and_then_costs_time_and_no_row(
    bucket_url: str, object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = [("k", 0, each, 0, each) for each in range(4)]
    with bad_store(object_store) as (address, day):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        first = 0
        while first < len(events):
            day.unanswered_puts, day.throttled = 2, 1
            with prepared(bucket_url) as store:
                first = store.marks().get(PartitionId(0), 0)
                for number in range(first, len(events)):
                    day.unanswered_puts = 1 + number
                    try:
                        store.add(batch([events[number]], [ranged(number, number + 1)]))
                    except VersionConflictError:  # delta-rs takes its own commit for another's
                        break
                first = store.marks().get(PartitionId(0), 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store)
    with ObjectStoreTables(bucket_url, create=False) as found, found.snapshot():
        assert contents(found) == truth(events)


@pytest.mark.long
def test_a_bucket_that_does_not_answer_is_called_that(
    bucket_url: str, object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bad_store(object_store) as (address, day):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with prepared(bucket_url) as store:
            plan = store._note_plan

            def planned(*given: Any) -> None:
                plan(*given)
                day.throttled = 10_000

            monkeypatch.setattr(store, "_note_plan", planned)
            with pytest.raises(ArchiveUnreachableError, match="does not answer delta-rs"):
                store.add(batch([("k", 0, 7, 0, 0)], [ranged(0, 1)]))


def test_a_rebuild_in_a_bucket_is_refused_and_says_what_to_do(bucket_url: str) -> None:
    with (
        prepared(bucket_url) as store,
        pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*name another prefix"),
    ):
        store.replace_by(store)
