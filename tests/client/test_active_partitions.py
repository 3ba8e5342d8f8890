"""Partitions that a client takes up and leaves while it runs, on a real server in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.client.applications import Note, Recorder
from tests.clusters import wait_until
from waltz.errors import LocalProtocolError, NotFoundError, PartitionInactiveError
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True, partitions=3) as cluster:
        yield cluster


def test_only_active_partitions_are_followed_and_written_to(cluster: InMemoryCluster) -> None:
    """PM-35, CI-10: with none at first."""
    recorder = Recorder()
    client = cluster.open_client(recorder, partitions=[])
    with pytest.raises(
        PartitionInactiveError, match=r"partition 0 is not active; .* partitions are \[\]"
    ):
        client.append(0, b"")
    client.set_partitions({0, 2})
    assert client.append(0, b"a") == 0
    assert client.append(2, b"b") == 0
    with pytest.raises(
        PartitionInactiveError, match=r"partition 1 is not active; .* partitions are \[0, 2\]"
    ):
        client.append(1, b"")
    client.set_partitions({2})
    with pytest.raises(PartitionInactiveError):
        client.append(0, b"")
    assert client.append(2, b"c") == 1
    with pytest.raises(NotFoundError):
        client.set_partitions({3})


def test_a_client_that_follows_all_cannot_choose(cluster: InMemoryCluster) -> None:
    """PM-35."""
    client = cluster.open_client(Recorder())
    with pytest.raises(LocalProtocolError, match="follows all partitions; open it with"):
        client.set_partitions({0})


def test_what_was_missed_is_fed_when_it_is_active_again(cluster: InMemoryCluster) -> None:
    """PM-27, PM-35: and no request ID comes twice, or somebody would be told another's verdict."""
    recorder, other = Recorder(), cluster.open_client(Recorder())
    client = cluster.open_client(recorder, partitions=[0, 1])
    for round_ in range(3):
        assert client.append(0, b"mine") == 2 * round_
        client.set_partitions({1})
        assert other.append(0, b"of the other") == 2 * round_ + 1
        assert recorder.applied_in(0)[-1] == 2 * round_, "an inactive partition is not followed"
        client.set_partitions({0, 1})
        wait_until(recorder.has_applied(2 * round_ + 1), "it is not fed")
    assert recorder.applied_in(0) == [*range(6)]
    with cluster.open_reader() as reader:
        (columns,) = reader.read(0, 0, 6)
    ids = [columns.request_ids[16 * n : 16 * n + 16] for n in range(6)]
    assert len(set(ids)) == 6


def test_many_appends_end_as_written_or_as_inactive(cluster: InMemoryCluster) -> None:
    """CI-28: the partition is flushed first, so what was sent gets its verdict."""
    recorder = Recorder()
    client = cluster.open_client(recorder, partitions=[0], max_concurrent_transactions=50)
    notes: list[Note] = []
    refused: list[Exception] = []
    began = threading.Event()

    def submit() -> None:
        for number in range(2_000):
            note = Note(f"{number}")
            try:
                client.submit(note)
            except PartitionInactiveError as error:
                refused.append(error)
            notes.append(note)
            if number == 20:
                began.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert began.wait(60)
    client.set_partitions(set())
    thread.join()
    assert not client.has_pending_transactions()
    stories = [note.story for note in notes]
    written = [story for story in stories if True in story]
    inactive = [story for story in stories if isinstance(story[-1], PartitionInactiveError)]
    assert len(written) + len(inactive) == 2_000
    assert written
    assert refused
    assert client.get_high_water_mark(0) + 1 == len(written)


def test_pending_contexts_of_a_partition_that_leaves_are_told(cluster: InMemoryCluster) -> None:
    """PM-15, PM-35, CI-28: nothing comes back, so there is no verdict in time."""
    recorder = Recorder()
    client = cluster.open_client(recorder, partitions=[0], mount_seconds_max=0.3)
    wait_until(lambda: client._there.engine.runner(0).gate.is_mounted, "it is not mounted")
    client.append(0, b"")
    cluster.faults.suspend_feed()
    note = Note()
    client.submit(note)
    client.set_partitions(set())
    assert isinstance(note.story[-1], PartitionInactiveError)
    assert note.story[-1].may_be_written, "it was sent"
    assert not client.has_pending_transactions()
    cluster.faults.resume_feed()
    client.set_partitions({0})
    wait_until(recorder.has_applied(1), "what was undecided is not fed")
    assert client.append(0, b"") == 2


def test_a_callback_may_not_choose(cluster: InMemoryCluster) -> None:
    errors: list[Exception] = []

    class Choosing(Note):
        def on_completion(self, result: bool) -> None:
            try:
                client.set_partitions({0})
            except LocalProtocolError as error:
                errors.append(error)

    client = cluster.open_client(Recorder(), partitions=[0])
    client.submit(Choosing())
    client.flush()
    assert "set_partitions was called inside a callback" in str(errors)


def test_a_change_that_is_cancelled_is_made_all_the_same(cluster: InMemoryCluster) -> None:
    """PM-35: it is made whole, so that the next change finds nothing half done."""

    async def main() -> None:
        recorder = Recorder()
        opened = cluster.open_async_client(recorder, partitions=[0, 1], mount_seconds_max=0.3)
        async with opened as client:
            await client.append(1, b"mounted")
            cluster.faults.suspend_feed()
            note = Note(partition=1)
            await client.submit(note)
            choosing = asyncio.create_task(client.set_partitions([0]))
            while client.engine.runners[PartitionId(1)].gate.error is None:
                await asyncio.sleep(0.001)
            choosing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await choosing
            cluster.faults.resume_feed()
            await client.set_partitions([0, 1])
            assert client.active_partitions() == [0, 1]
            assert await client.append(1, b"after", timeout_seconds=60) == 2
            await client.flush(60)
            assert note.story[-1] == "applied" or note.story[-1].may_be_written

    asyncio.run(main())
