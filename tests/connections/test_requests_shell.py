from __future__ import annotations

import asyncio
from collections.abc import Sequence
from zlib import crc32

import pytest

from tests.client.fake_cluster import MemoryCoordinator, host_with
from waltz.connections.loop_thread import WaitingThread
from waltz.connections.requests_shell import Requests
from waltz.connections.tasks_shell import Tasks
from waltz.errors import ClientClosedError, ConnectionLostError
from waltz.types import ClientId, PartitionId, TransactionId
from waltz.wire.client_protocol import (
    FeedSuspended,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.message import Message

P0 = PartitionId(0)


class World:
    """Requests with a server that answers what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.broken: list[tuple[int, str]] = []
        host = host_with(MemoryCoordinator())
        self.tasks = Tasks(pytest.fail)  # type: ignore[arg-type]
        self.requests = Requests(host, self.tasks, ClientId(1))
        self.requests.start(
            lambda _, messages: self.asked.extend(messages),
            lambda sequence, reason: self.broken.append((sequence, reason)),
        )
        self.requests.attach(P0, 0, knows_batches=True, gives_marks=False)

    async def answer(self) -> None:
        await asyncio.sleep(0.005)
        answers: Sequence[Message] = [
            TransactionDataResponse(
                each.request_id,
                each.transaction_id,
                b"%d" % each.transaction_id,
                crc32(b"%d" % each.transaction_id),
                None,
            )
            for each in self.asked
            if isinstance(each, TransactionDataRequest)
        ]
        self.asked.clear()
        await self.requests.receive(0, answers)


def ids(*numbers: int) -> list[TransactionId]:
    return [TransactionId(number) for number in numbers]


def test_many_who_wait_for_the_same_bodies_all_get_them() -> None:
    """CI-22."""

    async def main() -> None:
        world = World()
        waiting = [
            asyncio.create_task(world.requests.fetch(P0, wanted))
            for wanted in (ids(1, 2, 3), ids(3, 2), ids(3), ids())
        ]
        await asyncio.sleep(0.005)
        assert len(world.asked) == 3
        await world.answer()
        assert await asyncio.gather(*waiting) == [[b"1", b"2", b"3"], [b"3", b"2"], [b"3"], []]
        await world.tasks.stop()

    asyncio.run(main())


def test_who_has_given_up_does_not_harm_the_others() -> None:
    async def main() -> None:
        world = World()
        waiting = [asyncio.create_task(world.requests.fetch(P0, ids(1))) for _ in range(2)]
        await asyncio.sleep(0.005)
        waiting[0].cancel()
        await world.answer()
        assert await waiting[1] == [b"1"]
        await world.tasks.stop()

    asyncio.run(main())


def test_stopping_ends_all_who_wait() -> None:
    async def main() -> None:
        world = World()
        waiting = [
            asyncio.create_task(world.requests.fetch(P0, ids(1))),
            asyncio.create_task(world.requests.high_water_mark(P0)),
        ]
        await asyncio.sleep(0.005)
        world.requests.stop()
        for each in waiting:
            with pytest.raises(ClientClosedError):
                await each
        with pytest.raises(ClientClosedError):
            await world.requests.fetch(P0, ids(2))
        await world.tasks.stop()

    asyncio.run(main())


def test_a_connection_that_carries_a_feed_is_broken_off() -> None:
    """CI-05."""

    async def main() -> None:
        world = World()
        answering = asyncio.create_task(world.requests.fetch(P0, ids(1)))
        await asyncio.sleep(0.005)
        (asked,) = world.asked
        assert isinstance(asked, TransactionDataRequest)
        await world.requests.receive(0, [FeedSuspended(asked.request_id)])
        await asyncio.sleep(0.005)
        assert [sequence for sequence, _ in world.broken] == [0]
        answering.cancel()
        await world.tasks.stop()

    asyncio.run(main())


class Keeper:
    """Keeps what was requested ahead."""

    def __init__(self) -> None:
        self.kept: dict[TransactionId, bytes] = {}

    def take(self, transaction_id: TransactionId, data: bytes) -> None:
        self.kept[transaction_id] = data

    def find(self, transaction_id: TransactionId) -> bytes | None:
        return self.kept.get(transaction_id)


def result_of(thread: WaitingThread[bytes]) -> bytes | None:
    try:
        return thread.wait(asyncio.get_running_loop(), 0.0)
    except TimeoutError:
        return None


def test_a_thread_waits_for_its_own_body_and_the_others_are_kept() -> None:
    async def main() -> None:
        world, keeper = World(), Keeper()
        thread: WaitingThread[bytes] = WaitingThread()
        world.requests.fetch_for_thread(thread, P0, TransactionId(1))
        world.requests.fetch_ahead(P0, ids(2, 3), keeper)
        assert result_of(thread) is None
        await asyncio.sleep(0.005)
        assert len(world.asked) == 3
        await world.answer()
        await asyncio.sleep(0.005)
        assert result_of(thread) == b"1"
        assert keeper.kept == {2: b"2", 3: b"3"}
        await world.tasks.stop()

    asyncio.run(main())


def test_a_thread_that_waits_for_a_body_requested_ahead_shares_the_request() -> None:
    """CI-22."""

    async def main() -> None:
        world, keeper = World(), Keeper()
        thread: WaitingThread[bytes] = WaitingThread()
        world.requests.fetch_ahead(P0, ids(1), keeper)
        world.requests.fetch_for_thread(thread, P0, TransactionId(1))
        await asyncio.sleep(0.005)
        assert len(world.asked) == 1
        await world.answer()
        await asyncio.sleep(0.005)
        assert result_of(thread) == b"1"
        assert keeper.kept == {1: b"1"}
        await world.tasks.stop()

    asyncio.run(main())


def test_a_thread_is_told_that_its_connection_was_lost() -> None:
    async def main() -> None:
        world = World()
        threads: list[WaitingThread[bytes]] = [WaitingThread(), WaitingThread()]
        for number, thread in enumerate(threads):
            world.requests.fetch_for_thread(thread, PartitionId(number), TransactionId(1))
        world.requests.detach(P0, 0)
        with pytest.raises(ConnectionLostError, match="transaction data: the connection to the"):
            result_of(threads[0])
        assert result_of(threads[1]) is None
        await world.tasks.stop()

    asyncio.run(main())


def test_threads_are_told_of_the_end_and_nothing_is_requested_after_it() -> None:
    async def main() -> None:
        world, keeper = World(), Keeper()
        early: WaitingThread[bytes] = WaitingThread()
        late: WaitingThread[bytes] = WaitingThread()
        world.requests.fetch_for_thread(early, P0, TransactionId(1))
        world.requests.stop()
        world.requests.fetch_for_thread(late, P0, TransactionId(2))
        world.requests.fetch_ahead(P0, ids(3), keeper)
        for thread in early, late:
            with pytest.raises(ClientClosedError):
                result_of(thread)
        await asyncio.sleep(0.005)
        assert [each.transaction_id for each in world.asked] == [1]  # type: ignore[attr-defined]
        await world.tasks.stop()

    asyncio.run(main())
