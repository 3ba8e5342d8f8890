"""Calls that are cut short at any moment: what became of a transaction can be found out."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.clusters import wait_until
from tests.server.real_server import running_server
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import PlainAppend, TransactionBuilder
from waltz.errors import ClientClosedError, OperationTimeoutError, SubmitCancelledError
from waltz.reader.reader_shell import AsyncLogReader
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId

P0 = PartitionId(0)

MOMENTS = 60
"""Turns of the loop after which a call is cancelled; all of them take less."""


class Told(PlainAppend):
    """Writes down its ends."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0, data)
        self.ends: list[object] = []

    def on_completion(self, result: bool) -> None:
        self.ends.append(result)

    def on_exception(self, error: Exception) -> None:
        self.ends.append(error)


def on_a_server(
    directory: Path, work: Callable[[AsyncWaltzClient, Recorder], Awaitable[None]]
) -> None:
    """Run `work` with a client that has room for three."""

    async def main() -> None:
        recorder = Recorder()
        options = ClientOptions(max_concurrent_transactions=3)
        async with (
            running_server(directory) as (host, _),
            AsyncWaltzClient(host, recorder, options) as client,
        ):
            await client.append(0, b"first")
            await work(client, recorder)

    asyncio.run(asyncio.wait_for(main(), 120.0))


async def cancelled_after(turns: int, call: Awaitable[object]) -> object:
    """Cancel `call` after so many turns of the loop; return its result, None if cancelled."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


def test_a_submit_may_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    """UA-62: its context ends once; what was sent has an outcome, what was not is nowhere."""

    async def work(client: AsyncWaltzClient, recorder: Recorder) -> None:
        contexts = [Told(b"%d" % turns) for turns in range(MOMENTS)]
        for turns, context in enumerate(contexts, start=1):  # after 0 it has not begun
            await cancelled_after(turns, client.submit(context))
        await client.flush()
        await until(lambda: all(context.ends for context in contexts))
        assert not client.has_pending_transactions()
        assert [len(context.ends) for context in contexts] == [1] * MOMENTS
        for context in contexts:
            (end,) = context.ends
            if context.request_id is None:
                assert isinstance(end, SubmitCancelledError)
                assert not end.may_be_written
                assert context._data not in recorder.data
            else:
                assert end is True
                at = await client.outcome(context.request_id, context.executed_at)
                assert at is not None
                assert recorder.data[at] == context._data
        assert isinstance(contexts[0].ends[0], SubmitCancelledError), "too late"

    on_a_server(tmp_path, work)


def test_an_append_may_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    """UA-62: no room is lost, nothing is written twice, and the client goes on."""

    async def work(client: AsyncWaltzClient, recorder: Recorder) -> None:
        for turns in range(MOMENTS):
            at = await cancelled_after(turns, client.append(0, b"%d" % turns))
            assert at is None or recorder.data[int(str(at))] == b"%d" % turns
        await client.flush()
        last = await asyncio.gather(*[client.append(0, b"last %d" % n) for n in range(10)])
        assert [recorder.data[at] for at in last] == [b"last %d" % n for n in range(10)]
        assert len(recorder.data) == len(set(recorder.data))

    on_a_server(tmp_path, work)


class Slow(Told):
    """Cannot be executed; its end takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(b"never sent")
        self.is_told = threading.Event()
        self.may_end = threading.Event()

    def execute(self, builder: TransactionBuilder) -> bool:
        raise ValueError("not now")

    def on_exception(self, error: Exception) -> None:
        super().on_exception(error)
        self.is_told.set()
        self.may_end.wait(60)


def test_a_submit_that_is_cancelled_while_its_context_is_told_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    """UA-62: its room is free again, and no flush waits for it."""

    async def work(client: AsyncWaltzClient, recorder: Recorder) -> None:
        contexts = [Slow() for _ in range(3)]  # the client has room for three
        for context in contexts:
            submitting = asyncio.create_task(client.submit(context))
            await until(context.is_told.is_set)
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
            context.may_end.set()
        await client.flush(60)
        assert [type(end) for context in contexts for end in context.ends] == [ValueError] * 3
        assert await client.append(0, b"has room", timeout_seconds=60) == 1

    on_a_server(tmp_path, work)


def test_a_question_for_an_outcome_may_be_cancelled_and_asked_again(tmp_path: Path) -> None:
    """UA-62."""

    async def work(client: AsyncWaltzClient, recorder: Recorder) -> None:
        context = Told(b"x")
        await client.submit(context)
        await client.flush()
        assert context.request_id is not None
        for turns in range(20):
            at = await cancelled_after(turns, client.outcome(context.request_id))
            assert at in (None, 1)
            assert await client.outcome(context.request_id) == 1
        several = [client.outcome(context.request_id) for _ in range(5)]
        assert await asyncio.gather(*several) == [1] * 5

    on_a_server(tmp_path, work)


def test_a_flush_may_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    """UA-62."""

    async def work(client: AsyncWaltzClient, recorder: Recorder) -> None:
        for turns in range(20):
            await client.submit(Told(b"%d" % turns))
            await cancelled_after(turns, client.flush())
        await client.flush()
        assert len(recorder.data) == 21

    on_a_server(tmp_path, work)


def test_closing_and_opening_may_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    """UA-62: what is not open can be closed, and closing goes on."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            for turns in range(MOMENTS):
                client = AsyncWaltzClient(host, Recorder())
                await cancelled_after(turns, client.start())
                await cancelled_after(turns, client.close())
                await client.close()
                while server.state().connections:
                    await asyncio.sleep(0.002)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            names = [repr(task) for task in left if "waltz/client" in repr(task)]
            assert names == []

    asyncio.run(asyncio.wait_for(main(), 120.0))


@pytest.mark.parametrize("kind", ["client", "client of servers", "reader", "reader of servers"])
def test_what_is_closed_while_it_opens_is_not_open_afterwards(tmp_path: Path, kind: str) -> None:
    """UA-62: at any moment; it would be connected for good, and nobody could close it."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            closed = 0
            servers = [server.address] if "servers" in kind else []
            for turns in range(MOMENTS):
                opening: AsyncWaltzClient | AsyncLogReader = AsyncLogReader(host, servers=servers)
                if "client" in kind:
                    opening = AsyncWaltzClient(host, Recorder(), ClientOptions(servers=servers))
                starting = asyncio.create_task(opening.start())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await opening.close()
                try:
                    await starting
                except ClientClosedError:
                    closed += 1
            assert closed > 0
            left = asyncio.all_tasks() - {asyncio.current_task()}
            rooms = ("waltz/client", "waltz/connections", "waltz/reader")
            assert [each for each in map(repr, left) if any(room in each for room in rooms)] == []

    asyncio.run(asyncio.wait_for(main(), 120.0))


def test_an_append_out_of_time_can_be_looked_up(tmp_path: Path) -> None:
    """UA-30, UA-31: the time is up while nothing comes back; later it is known."""
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        client.append(0, b"mounted")
        cluster.faults.suspend_feed()
        context = Told(b"x")
        context.timeout_seconds = 0.5
        client.submit(context)
        wait_until(lambda: context.request_id is not None, "it was not sent")
        with pytest.raises(OperationTimeoutError):
            client.append(0, b"y", timeout_seconds=0.1)
        cluster.faults.resume_feed()
        assert context.request_id is not None
        assert client.outcome(context.request_id, context.executed_at) == 1


# Ctrl-C, in the main thread of a program that goes on after it


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Send this process SIGINT once a condition holds, and then some."""
    threads: list[threading.Thread] = []

    def once(condition: Callable[[], bool]) -> None:
        def wait_and_send() -> None:
            wait_until(condition, "there is nothing to interrupt")
            threading.Event().wait(0.1)  # so that the main thread is deep in its call
            # To this thread: the kernel may give a signal of the process to any of its threads.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threads.append(threading.Thread(target=wait_and_send))
        threads[-1].start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield once
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True) as cluster:
        yield cluster


Interrupt = Callable[[Callable[[], bool]], None]


def definite(client: WaltzClient, context: PlainAppend) -> int | None:
    assert context.request_id is not None
    return client.outcome(context.request_id, context.executed_at, timeout_seconds=60)


def test_a_flush_that_is_interrupted_leaves_definite_outcomes(
    cluster: InMemoryCluster, interrupt: Interrupt
) -> None:
    client = cluster.open_client(Recorder())
    cluster.faults.suspend_feed()
    contexts = [Told(b"%d" % n) for n in range(3)]
    for context in contexts:
        client.submit(context)
    interrupt(lambda: contexts[-1].request_id is not None)
    with pytest.raises(KeyboardInterrupt):
        client.flush()
    cluster.faults.resume_feed()
    assert [definite(client, context) for context in contexts] == [0, 1, 2]
    client.flush()
    assert [context.ends for context in contexts] == [[True]] * 3


def test_an_append_and_an_outcome_that_are_interrupted_leave_the_client_whole(
    cluster: InMemoryCluster, interrupt: Interrupt
) -> None:
    recorder = Recorder()
    client = cluster.open_client(recorder, max_concurrent_transactions=1)
    cluster.faults.suspend_feed()
    interrupt(client.has_pending_transactions)
    with pytest.raises(KeyboardInterrupt):
        client.append(0, b"x")
    runner = client.engine.runners[P0]
    asked = [each for each, _ in runner.machine.own.monitor.items()]
    interrupt(lambda: bool(runner.waiting._outcomes))
    with pytest.raises(KeyboardInterrupt):
        client.outcome(asked[0])
    interrupt(lambda: True)
    with pytest.raises(KeyboardInterrupt):
        client.submit(Told(b"no room"))
    cluster.faults.resume_feed()
    assert client.outcome(asked[0]) == 0
    assert client.append(0, b"after") == 1
    client.flush()
    assert recorder.data == [b"x", b"after"]


def test_an_execution_that_is_interrupted_sends_nothing(
    cluster: InMemoryCluster, interrupt: Interrupt
) -> None:
    class Slow(Told):
        began = False

        def execute(self, builder: TransactionBuilder) -> bool:
            self.began = True
            threading.Event().wait()
            return True

    client = cluster.open_client(Recorder(), max_concurrent_transactions=1)
    slow = Slow(b"x")
    interrupt(lambda: slow.began)
    with pytest.raises(KeyboardInterrupt):
        client.submit(slow)
    (end,) = slow.ends
    assert isinstance(end, SubmitCancelledError)
    assert slow.request_id is None
    assert client.append(0, b"there is room again") == 0
