"""What waits for one partition: grouping, back pressure, commands, the end (SN-15, SN-26)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.storage.support import (
    SESSION,
    ZERO,
    append,
    batch,
    fresh_disk,
    open_partition,
    read_all,
    t,
)
from waltz.errors import NotFoundError, UnavailableError
from waltz.host import Host
from waltz.limits import DRAIN_BYTES_MAX
from waltz.record import RecordBatch
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.partition_queue_shell import (
    STORAGE_MAILBOX_REQUESTS_MAX,
    PartitionQueue,
    StoragePeer,
)
from waltz.system.real_host import real_host
from waltz.wire.handshake import Link
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    FailureResponse,
    MaxTransactionIdRequest,
    StorageMessage,
)


@dataclass
class Recorder:
    """A connection that keeps what is written to it."""

    written: list[bytes] = field(default_factory=list)
    is_paused: bool = False
    peer: str = "a test"
    certificate: None = None
    is_encrypted: bool = False
    user: None = None
    token: str = ""
    unsent_bytes: int = 0
    trouble: str = ""

    async def read(self, wanted: int = 1) -> bytes:
        return b""

    def hand_over(self, receive: Callable[[bytes], None]) -> None: ...

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def send(self, data: bytes) -> None:
        self.write(data)

    def note_held(self, byte_count: int) -> None: ...

    def note_dispensable(self, is_dispensable: bool) -> None: ...
    def flush(self) -> None: ...

    async def drain(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


class Bench:
    """A queue with its loop running, and connections to it."""

    def __init__(self, disk: SimulatedDisk, host: Host) -> None:
        self.disk = disk
        self.partition = open_partition(disk)
        self.queue = PartitionQueue(host, self.partition)
        self.connections: list[Recorder] = []

    def peer(self) -> StoragePeer:
        connection = Recorder()
        self.connections.append(connection)
        ours, theirs = Link(STORAGE_CODEC, "node"), Link(STORAGE_CODEC, "test")
        ours.receive(theirs.hello())
        return StoragePeer(connection, ours, is_opened=True)

    def put(self, peer: StoragePeer, *messages: StorageMessage) -> None:
        """Let one read bring `messages`."""
        self.queue.put(peer, messages)

    def paused(self) -> list[bool]:
        """Whether each connection is not read."""
        return [connection.is_paused for connection in self.connections]

    def answers(self, number: int) -> list[StorageMessage]:
        link = Link(STORAGE_CODEC, "test")
        link.receive(Link(STORAGE_CODEC, "node").hello())
        messages = link.receive(b"".join(self.connections[number].written))
        return [message for message in messages if isinstance(message, StorageMessage)]


def run_bench(test: Callable[[Bench], Awaitable[None]], *, ends_itself: bool = False) -> None:
    async def main() -> None:
        bench = Bench(fresh_disk(), real_host(None))
        await asyncio.wait_for(test(bench), 60)
        if not ends_itself:
            await bench.queue.stop()

    asyncio.run(main())


def test_what_waits_is_one_drain_and_one_write_per_connection() -> None:
    async def test(bench: Bench) -> None:
        one, other = bench.peer(), bench.peer()
        bench.disk.counts.clear()
        async with bench.queue.pause():
            for number in range(20):
                bench.put((one, other)[number % 2], append(number, 1))
        await bench.queue.command(lambda: None)
        assert bench.disk.counts[DiskOperation.SYNC] == 1
        assert bench.disk.counts[DiskOperation.WRITE] == 3, "data, index and journal"
        assert [len(connection.written) for connection in bench.connections] == [1, 1]
        assert [answer.sequence_number for answer in bench.answers(1)] == list(range(1, 20, 2))

    run_bench(test)


def test_commands_run_in_their_turn() -> None:
    async def test(bench: Bench) -> None:
        peer = bench.peer()
        bench.put(peer, append(0, 3))
        asking = asyncio.create_task(bench.queue.command(lambda: bench.partition.truncate(2)))  # type: ignore[arg-type]
        counting = asyncio.create_task(
            bench.queue.command(lambda: bench.partition.log.next_transaction_id)
        )
        await asyncio.sleep(0)
        bench.put(peer, append(3, 2))
        assert (await asking, await counting) == (2, 3)
        await bench.queue.command(lambda: None)
        assert len(read_all(bench.partition)) == 5

    run_bench(test)


def test_commands_raise_what_they_raise() -> None:
    async def test(bench: Bench) -> None:
        def refuse() -> None:
            raise NotFoundError("nothing there")

        with pytest.raises(NotFoundError, match="nothing there"):
            await bench.queue.command(refuse)

    run_bench(test)


def test_abandoned_commands_do_no_harm() -> None:
    async def test(bench: Bench) -> None:
        def refuse() -> None:
            raise NotFoundError("nobody listens")

        for function in (refuse, lambda: None):
            asking = asyncio.create_task(bench.queue.command(function))
            await asyncio.sleep(0)
            asking.cancel()
        await bench.queue.command(lambda: None)

    run_bench(test)


def test_failed_index_is_a_failed_drain_and_closes_the_writer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(bench: Bench) -> None:
        peer = bench.peer()
        bench.disk.fault = fail_nth(DiskOperation.WRITE, 2)
        bench.put(peer, append(0, 1500))
        await bench.queue.command(lambda: None)
        bench.put(peer, append(1500, 1))
        await bench.queue.command(lambda: None)
        assert [type(answer) for answer in bench.answers(0)] == [FailureResponse, FailureResponse]

    run_bench(test)
    assert caplog.text.count("writer_closed partition=0") == 1


def test_readers_wait_for_room_by_count_and_by_bytes() -> None:
    async def test(bench: Bench) -> None:
        peer, other = bench.peer(), bench.peer()
        question = MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False)
        async with bench.queue.pause():
            bench.put(peer, *[question] * (STORAGE_MAILBOX_REQUESTS_MAX - 1))
            assert not bench.paused()[0]
            bench.put(other, question)
            bench.put(peer, question)
            assert bench.paused() == [True, True]
        await bench.queue.command(lambda: None)
        assert bench.paused() == [False, False]
        large = append(0, 1, size=DRAIN_BYTES_MAX // 2)
        for number in range(5):
            bench.put(peer, replace(large, records=replaced(large.records, number)))
            assert bench.paused()[0] == (number % 2 == 1)
            if number % 2:
                await bench.queue.command(lambda: None)
                assert not bench.paused()[0]
        await bench.queue.command(lambda: None)
        assert bench.queue._unanswered_bytes == bench.queue._waiting_requests == 0
        assert len(bench.answers(0)) == STORAGE_MAILBOX_REQUESTS_MAX + 5
        assert len(bench.answers(1)) == 1

    run_bench(test)


def replaced(records: RecordBatch, number: int) -> RecordBatch:
    return RecordBatch(t(number), records.block, records.offsets)


def test_while_it_is_paused_nothing_is_done_and_what_comes_waits() -> None:
    async def test(bench: Bench) -> None:
        peer = bench.peer()
        async with bench.queue.pause():
            bench.put(peer, append(0, 1))
            asking = asyncio.create_task(bench.queue.command(lambda: None))
            pausing = asyncio.create_task(bench.queue.pause().__aenter__())
            await asyncio.sleep(0)
            pausing.cancel()
            state = bench.queue.state(scrub_position=t(-1))
            assert state is not None
            assert (state.queue_requests, state.call_seconds) == (1, 0)
            assert bench.connections[0].written == []
        await asking
        assert len(bench.answers(0)) == 1

    run_bench(test)


def blunder() -> None:
    raise AssertionError("what cannot be")


def test_a_bug_ends_the_partition_and_everybody_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """SN-15: what was under way, what waited, and what comes later is refused; nothing hangs."""

    async def test(bench: Bench) -> None:
        peer = bench.peer()
        bench.put(peer, append(0, 2))
        failing = asyncio.create_task(bench.queue.command(blunder))
        waiting = asyncio.create_task(bench.queue.command(lambda: None))
        await asyncio.sleep(0)
        bench.put(peer, append(2, 1))
        for asked in (failing, waiting):
            with pytest.raises(
                UnavailableError, match=r"partition 0 has failed on this node.*what cannot"
            ):
                await asked
        bench.put(peer, append(2, 2))
        with pytest.raises(UnavailableError, match="has failed on this node"):
            await bench.queue.command(lambda: None)
        first, *others = bench.answers(0)
        assert not isinstance(first, FailureResponse)
        assert [type(answer) for answer in others] == [FailureResponse, FailureResponse]
        state = bench.queue.state(scrub_position=t(-1))
        assert state is not None
        assert (state.is_usable, state.is_writer_open, state.queue_bytes) == (False, False, 0)
        assert "has failed, by a bug" in state.problems()[0]

    run_bench(test, ends_itself=True)
    assert caplog.text.count("partition_failed partition=0") == 1


def test_a_bug_in_a_drain_answers_each_of_its_requests_once() -> None:
    async def test(bench: Bench) -> None:
        peers = [bench.peer(), bench.peer()]
        bench.partition.writer.sync = blunder  # type: ignore[method-assign]
        for number in range(STORAGE_MAILBOX_REQUESTS_MAX):
            bench.put(peers[number % 2], append(number, 1))
        for peer in peers:
            bench.put(peer, append(0, 1))
        while bench.queue.failed is None:
            await asyncio.sleep(0.01)
        assert bench.paused() == [False, False]
        for number in (0, 1):
            answers = bench.answers(number)
            assert {type(answer) for answer in answers} == {FailureResponse}
            assert len(answers) == STORAGE_MAILBOX_REQUESTS_MAX // 2 + 1

    run_bench(test, ends_itself=True)


def test_answers_for_a_connection_that_is_gone_are_dropped() -> None:
    async def test(bench: Bench) -> None:
        peer = bench.peer()
        bench.put(peer, append(0, 1))
        peer.is_gone = True
        await bench.queue.command(lambda: None)
        assert bench.connections[0].written == []
        assert len(read_all(bench.partition)) == 1

    run_bench(test)


def test_after_the_stop_nothing_is_done_and_nothing_hangs() -> None:
    async def test(bench: Bench) -> None:
        peer = bench.peer()
        bench.put(peer, append(0, 1))
        stopping = asyncio.create_task(bench.queue.stop())
        late = asyncio.create_task(bench.queue.command(lambda: None))
        await asyncio.sleep(0)
        bench.put(peer, append(1, 1))
        await stopping
        with pytest.raises(UnavailableError, match="node is stopping"):
            await late
        with pytest.raises(UnavailableError, match="node is stopping"):
            await bench.queue.command(lambda: None)
        assert len(bench.answers(0)) == 1
        assert len(read_all(open_partition(released(bench.disk)))) == 1

    run_bench(test, ends_itself=True)


def released(disk: SimulatedDisk) -> SimulatedDisk:
    disk.release_locks()
    return disk


def test_the_state_tells_what_waits_and_only_what_is_durable() -> None:
    """MT-22, MT-23: while a thread works, what it has not synced yet is not told."""

    async def test(bench: Bench) -> None:
        working, may_go_on = threading.Event(), threading.Event()

        def write() -> None:
            bench.partition.writer.write(batch(2, 3))
            working.set()
            assert may_go_on.wait(60)
            bench.partition.writer.sync()

        peer = bench.peer()
        bench.put(peer, append(0, 2))
        await bench.queue.command(lambda: None)
        writing = asyncio.create_task(bench.queue.command(write))
        await asyncio.to_thread(working.wait, 30)
        bench.put(peer, append(5, 1))
        during = bench.queue.state(scrub_position=t(1))
        assert during is not None
        assert (during.next_transaction_id, during.scrub_position) == (2, 1)
        assert (during.queue_requests, during.queue_bytes) == (1, len(batch(5, 1).block))
        assert during.call_seconds > 0
        may_go_on.set()
        await writing
        await bench.queue.command(lambda: None)
        after = bench.queue.state(scrub_position=t(-1))
        assert after is not None
        assert (after.next_transaction_id, after.queue_requests, after.queue_bytes) == (6, 0, 0)
        assert after.call_seconds == 0
        assert after.drain_seconds.count == after.counters.drains_synced == 2

    run_bench(test)
