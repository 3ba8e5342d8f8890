"""One client, many threads: all verbs at once, and somebody closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.client.applications import Note, Recorder
from tests.clusters import wait_until
from waltz.client.blocking_client import WaltzClient
from waltz.client.transaction import PlainAppend, Transaction, TransactionBuilder
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    OperationTimeoutError,
    PostponedError,
)
from waltz.limits import WORKER_THREADS_MAX
from waltz.testing import InMemoryCluster

THREADS = 16
EACH = 25


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        yield cluster


def in_threads(works: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Run all at once and return what they raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


def test_all_verbs_may_be_used_by_many_threads_at_once(cluster: InMemoryCluster) -> None:
    """PM-05, UA-60: each append has an ID of its own, each question its own answer."""
    recorder = Recorder()
    client = cluster.open_client(recorder, max_concurrent_transactions=4)
    ids: list[tuple[int, int, bytes]] = []

    def work(number: int) -> Callable[[], None]:
        def use() -> None:
            partition = number % 2
            for turn in range(EACH):
                data = b"%d %d" % (number, turn)
                if turn % 2:
                    context = PlainAppend(partition, data, write_locks=())
                    client.submit(context)
                    client.flush()
                    assert context.request_id is not None
                    at = client.outcome(context.request_id, context.executed_at)
                    assert at is not None
                else:
                    at = client.append(partition, data)
                assert client.get_high_water_mark(partition) >= at
                assert client.client_high_water_mark(partition) >= at
                ids.append((partition, at, data))

        return use

    assert in_threads([work(number) for number in range(THREADS)]) == []
    assert len({(partition, at) for partition, at, _ in ids}) == THREADS * EACH
    with cluster.open_reader() as reader:
        for partition in (0, 1):
            end = THREADS * EACH // 2
            log = [d for columns in reader.read(partition, 0, end) for d in columns.data]
            assert {at: data for where, at, data in ids if where == partition} == dict(
                enumerate(log)
            )


def test_closing_ends_every_call_that_waits(cluster: InMemoryCluster) -> None:
    """PM-44, UA-63: for room, for a verdict, for a flush, for an outcome, for a server."""
    client = cluster.open_client(Recorder(), max_concurrent_transactions=1)
    cluster.faults.suspend_feed()
    first = Note()
    client.submit(first)
    wait_until(lambda: first.request_id is not None, "it was not sent")
    request_id = first.request_id
    assert request_id is not None
    works: list[Callable[[], object]] = [
        lambda: client.submit(Note()),
        lambda: client.append(0, b"for room"),
        lambda: client.append(1, b"for a verdict"),
        client.flush,
        lambda: client.outcome(request_id),
    ]
    begun = threading.Barrier(3 * len(works) + 1)

    def waiting(work: Callable[[], object]) -> Callable[[], None]:
        def wait() -> None:
            begun.wait(60)
            work()

        return wait

    def close() -> None:
        begun.wait(60)
        threading.Event().wait(0.3)  # so that the others are in their calls
        client.close()

    raised = in_threads([*[waiting(work) for work in works * 3], close])
    assert all(isinstance(error, ClientClosedError) for error in raised), raised
    # A flush has seen all end, and is content.
    assert len(raised) >= 3 * (len(works) - 1)
    assert isinstance(first.story[-1], ClientClosedError)


def test_many_threads_may_close_at_once(cluster: InMemoryCluster) -> None:
    """PM-44."""
    clients: list[WaltzClient] = [cluster.open_client(Recorder()) for _ in range(3)]
    for client in clients:
        client.append(0, b"x")
    assert in_threads([client.close for client in clients for _ in range(5)]) == []
    for client in clients:
        with pytest.raises(ClientClosedError):
            client.append(0, b"x")


def test_threads_come_and_go_while_the_client_stays(cluster: InMemoryCluster) -> None:
    """Nothing of the client is bound to the thread that opened it, or to those that used it."""
    opened: list[WaltzClient] = []
    assert in_threads([lambda: opened.append(cluster.open_client(Recorder()))]) == []
    for number in range(5):
        assert in_threads([lambda: opened[0].append(0, b"x")]) == []
        assert opened[0].client_high_water_mark(0) == number
    assert in_threads([opened[0].close]) == []


class Flushing(Note):
    """Flushes inside the callback `where`, on the thread that submits it."""

    def __init__(self, client: WaltzClient, where: str) -> None:
        super().__init__(write=ValueError("not now") if where == "on_exception" else False)
        self._client = client
        self._where = where

    def execute(self, builder: TransactionBuilder) -> bool:
        self._flush_in("execute")
        return super().execute(builder)

    def on_completion(self, result: bool) -> None:
        self._flush_in("on_completion")

    def on_exception(self, error: Exception) -> None:
        self._flush_in("on_exception")

    def _flush_in(self, callback: str) -> None:
        if callback == self._where:
            with pytest.raises(LocalProtocolError, match="would wait for that callback"):
                self._client.flush(60)
            self.story.append("refused")


@pytest.mark.parametrize("where", ["execute", "on_completion", "on_exception"])
def test_a_flush_that_would_wait_for_its_own_submit_is_refused(
    cluster: InMemoryCluster, where: str
) -> None:
    client = cluster.open_client(Recorder())
    context = Flushing(client, where)
    raised = in_threads([lambda: client.submit(context)])
    assert [type(each) for each in raised] == [ValueError] * (where == "on_exception")
    assert "refused" in context.story
    client.flush(60)


class Interrupted(Note):
    """Is interrupted in its last callback, as by Ctrl-C."""

    def on_completion(self, result: bool) -> None:
        raise KeyboardInterrupt

    def on_exception(self, error: Exception) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("write", [False, ValueError("not now")])
def test_a_submit_that_is_interrupted_in_its_last_callback_leaves_nothing_behind(
    cluster: InMemoryCluster, write: object
) -> None:
    client = cluster.open_client(Recorder(), max_concurrent_transactions=1)
    with pytest.raises(KeyboardInterrupt):
        client.submit(Interrupted(write=write))
    client.flush(60)
    assert client.append(0, b"has room", timeout_seconds=60) == 0


class Stuck(Recorder):
    """Applies nothing until it is let go, as with a database that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def apply_transaction(self, transaction: Transaction) -> None:
        self.is_stuck.release()
        self.may_go_on.wait(120)
        super().apply_transaction(transaction)


@pytest.mark.parametrize("verb", ["append", "append_many"])
def test_an_append_ends_in_its_time_however_many_callbacks_hang(verb: str) -> None:
    """All workers are in callbacks, and no worker is needed to say that the time is up."""
    with InMemoryCluster(for_tests=True, partitions=WORKER_THREADS_MAX + 1) as cluster:
        application = Stuck()
        client = cluster.open_client(application)
        last = WORKER_THREADS_MAX
        for partition in range(last):
            client.submit(PlainAppend(partition, b"x"))
        for _ in range(last):
            assert application.is_stuck.acquire(timeout=60)
        works: dict[str, Callable[[], object]] = {
            "append": lambda: client.append(last, b"y", timeout_seconds=0.1),
            "append_many": lambda: client.append_many(last, [b"y"], timeout_seconds=0.1),
        }
        try:
            raised = in_threads([works[verb]])
        finally:
            application.may_go_on.set()
        assert [type(each) for each in raised] == [OperationTimeoutError]


class Away(Recorder):
    """Applies in batches, and nothing, as with a database that is away."""

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        raise PostponedError("the database is away", 0.01)


def test_an_append_ends_in_its_time_while_its_own_applying_is_put_off(
    cluster: InMemoryCluster,
) -> None:
    """It is in the log, and was not applied here: it is no success, and can be asked for."""
    application = Away()
    client = cluster.open_client(application)
    raised = in_threads([lambda: client.append(0, b"x", timeout_seconds=0.3)])
    (error,) = raised
    assert isinstance(error, OperationTimeoutError)
    assert "it is in the log, as transaction 0, and" in str(error)
    assert error.may_be_written
    assert client.outcome(error.request_id, error.executed_at) == 0


def test_an_append_ends_in_its_time_while_its_own_callback_hangs(cluster: InMemoryCluster) -> None:
    application = Stuck()
    client = cluster.open_client(application)
    try:
        raised = in_threads([lambda: client.append(0, b"x", timeout_seconds=0.3)])
    finally:
        application.may_go_on.set()
    assert [type(each) for each in raised] == [OperationTimeoutError]
    assert "it is in the log, as transaction 0, and" in str(raised[0])
    client.flush(60)
    assert application.data == [b"x"]
