"""One client, many threads: all verbs at once, and somebody closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.client.applications import Note, Recorder
from tests.clusters import wait_until
from waltz.client.blocking_client import WaltzClient
from waltz.client.transaction import PlainAppend
from waltz.errors import ClientClosedError
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
