"""What pages inquire, asked of a running cluster; and how sinks are read from their notes."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest

import waltz
from tests.client.applications import Recorder
from tests.clusters import RunningCluster
from waltz.cluster.paths import root_at
from waltz.console.asking_shell import ClusterAsker
from waltz.console.inquiries import (
    DurationsOf,
    HottestLocksOf,
    Inquiry,
    LifeOf,
    LocksOf,
    PipelinesOf,
    PlaceOf,
    RequestOf,
    SessionsOf,
    SinksOf,
    SinksTold,
)
from waltz.console.inquiring_shell import NOTES_READ_MAX, ClusterInquirer, NotesWatched
from waltz.console.log_window_shell import ReaderWindow
from waltz.console.pipelines_shell import ask_pipelines
from waltz.console.poller_shell import ClusterPoller
from waltz.errors import UnavailableError
from waltz.host import Coordinator, Node
from waltz.spark.sink_progress import TaskProgress
from waltz.system.real_host import real_host
from waltz.types import (
    ClientId,
    PartitionId,
    TransactionId,
    parse_coordinator,
)

ZERO, ONE = PartitionId(0), PartitionId(1)


class Locked(waltz.TransactionContext):
    """Takes the lock that all of them take."""

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def partition_id(self, partition_count: int) -> int:
        return 0

    def on_completion(self, result: bool) -> None:
        self.is_over.set()

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        builder.set_transaction_data(b"locked", waltz.BytesSerializer())
        builder.set_write_locks([waltz.PartitionLocalLock("account", 7)])
        return True


def inquire(cluster: RunningCluster, *questions: Inquiry) -> list[Any]:
    """Return the answers, or the errors, as a console of the cluster gets them."""

    async def main() -> list[Any]:
        address = parse_coordinator(cluster.coordinator)
        assert not hasattr(address, "servers")
        host = real_host(address)
        poller = ClusterPoller(host.clock, ClusterAsker(host, root_at(address)), {})
        window = ReaderWindow(lambda: waltz.open_async_reader(cluster.coordinator))
        inquirer = ClusterInquirer(
            host, root_at(address), window, poller.server_of, lambda: ask_pipelines(())
        )
        try:
            await poller.look(10)
            return [await _answer(inquirer, each) for each in questions]
        finally:
            await poller.stop()
            await window.close()
            await host.coordinator.close()

    return asyncio.run(main())


async def _answer(inquirer: ClusterInquirer, question: Inquiry) -> Any:
    try:
        return await inquirer.ask(question)
    except waltz.WaltzError as error:
        return error


@pytest.mark.processes
def test_everything_that_pages_inquire_is_told_by_a_running_cluster(
    cluster: RunningCluster,
) -> None:
    before = round(time.time() * 1000)
    with waltz.open_client(cluster.coordinator, Recorder(), name="orders") as client:
        contexts = [Locked() for _ in range(30)]
        client.submit_many(contexts)
        for context in contexts:
            assert context.is_over.wait(60)
        place = client.append(1, b"the last one")
        request_id = contexts[3].request_id
        assert request_id is not None
        last = client.outcome(request_id)
        assert last is not None
        locks, hottest, durations, sessions, life, found, absent, at, sinks, pipelines = inquire(
            cluster,
            LocksOf(ZERO),
            HottestLocksOf(3),
            DurationsOf(ZERO),
            SessionsOf(ZERO),
            LifeOf(ZERO, last),
            RequestOf(request_id),
            RequestOf(request_id._replace(sequence_number=99_999)),
            PlaceOf(ZERO, before - 3_600_000),
            SinksOf(),
            PipelinesOf(),
        )
    assert locks.kept.count > 0
    assert locks.kept.count == sum(each.refusals for each in locks.locks)
    assert {each.lock_hash for each in locks.locks} <= {waltz.PartitionLocalLock("account", 7).hash}
    assert hottest.asked[ZERO].count == locks.kept.count
    assert {*hottest.asked} == {ZERO, ONE}
    assert hottest.unasked == {2: "no server has it now"}, "there is no such partition"
    of_zero = [each.lock.lock_hash for each in hottest.locks if each.partition_id == ZERO]
    assert of_zero == [each.lock_hash for each in locks.locks]
    counts = {each.stage: sum(b.count for b in each.buckets) for each in durations.stages}
    assert counts["store"] > 0
    assert sessions.sessions[0].nodes >= 2
    assert not sessions.silent
    assert (life.is_committed, life.request_id) == (True, request_id)
    assert ("Client", "orders") in life.author
    assert len(life.copies) == 3
    assert (found.transaction_id, found.last) == (last, found.last)
    assert absent.transaction_id is None
    assert absent.refusals == 0
    assert (at.first, isinstance(at.later, int)) == (0, True)
    assert sinks.sinks == ()
    assert pipelines.pipelines == ()
    assert place is not None


@pytest.mark.processes
def test_what_there_is_not_is_told_as_an_error(cluster: RunningCluster) -> None:
    nowhere = PartitionId(77)
    for error in inquire(
        cluster, LocksOf(nowhere), DurationsOf(nowhere), SessionsOf(nowhere),
        LifeOf(nowhere, TransactionId(1)),
    ):  # fmt: skip
        assert isinstance(error, waltz.WaltzError), error


def note(batch: int, **marks: int) -> bytes:
    found = {PartitionId(int(key[1:])): TransactionId(mark) for key, mark in marks.items()}
    return TaskProgress(batch, found, (ClientId(1),)).encode()


def test_a_sink_is_as_far_as_its_last_batch_and_changes_are_seen_only_by_who_looks() -> None:
    watched = NotesWatched()
    notes = {
        "spark-a-b%2Fc-0": (note(7, p0=5, p1=6), 3),
        "spark-a-b%2Fc-1": (note(7, p0=4), 1),
        "spark-a-b%2Fc-2": (note(6, p0=1), 1),
        "spark-a-b%2Fc-tasks": (b"{}", 0),
        "spark-broken-0": (b"\xff", 0),
    }
    sink, broken = watched.sinks(notes, 10.0)
    assert (sink.write_id, sink.batch, sink.tasks, sink.marks) == ("a-b/c", 7, 2, {0: 4, 1: 6})
    assert (sink.changed_seconds, sink.watched_seconds) == (None, 0.0)
    assert broken.write_id == "broken"
    assert broken.problem is not None
    (sink, _) = watched.sinks(notes, 15.0)
    assert (sink.changed_seconds, sink.watched_seconds) == (None, 5.0)
    notes["spark-a-b%2Fc-0"] = (note(8, p0=9), 4)
    (sink, _) = watched.sinks(notes, 20.0)
    assert (sink.batch, sink.tasks, sink.changed_seconds) == (8, 1, 0.0)
    (sink, _) = watched.sinks(notes, 23.0)
    assert sink.changed_seconds == 3.0
    assert watched.sinks({}, 24.0) == []
    (sink, _) = watched.sinks(notes, 25.0)
    assert sink.changed_seconds is None, "it was not watched in between"


def test_a_partition_without_a_server_has_nobody_to_ask() -> None:
    async def main() -> None:
        inquirer = ClusterInquirer(None, "/waltz", None, lambda number: None, None)  # type: ignore[arg-type]
        with pytest.raises(UnavailableError, match="has no server"):
            await inquirer.ask(LocksOf(ONE))

    asyncio.run(main())


class Notes:
    """A coordinator with notes only."""

    def __init__(self, notes: dict[str, bytes]) -> None:
        self._notes = notes

    async def children(self, path: str) -> list[str]:
        return sorted(self._notes)

    async def read(self, path: str) -> Node:
        return Node(self._notes[path.rpartition("/")[2]], 0, 0)


def test_of_too_many_notes_a_sink_is_read_as_a_whole_or_not_at_all() -> None:
    """One whose tasks were read in part would have too few tasks, and too old a batch."""
    tasks = {"a": 10, "b": NOTES_READ_MAX, "c": 5}
    notes = {
        f"spark-{write_id}-{number}": note(3)
        for write_id, count in tasks.items()
        for number in range(count)
    }
    host = replace(real_host(None), coordinator=cast(Coordinator, Notes(notes)))

    async def main() -> SinksTold:
        nobody: Any = None
        inquirer = ClusterInquirer(host, "/waltz", nobody, lambda _: None, nobody)
        found: SinksTold = await inquirer.ask(SinksOf())
        return found

    told = asyncio.run(main())
    assert {each.write_id: each.tasks for each in told.sinks} == {"a": 10, "c": 5}
    assert told.left_out
