"""Client and reader for threads, beside a server on another thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.client.applications import WRITTEN, Note, Recorder
from tests.client.fake_cluster import FakeServer, hosts_for, server_thread
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.transaction import Transaction
from waltz.errors import (
    AlreadyClosedError,
    ClientClosedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
)
from waltz.types import ClientId, Generation, PartitionId, RequestId

REQUEST = RequestId(ClientId(1), Generation(1), PartitionId(0), 2)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with server_thread(2) as started:
        yield started


def opened(
    server: FakeServer, callbacks: WaltzClientCallbacks | None = None, **options: object
) -> WaltzClient:
    settings = ClientOptions(**options)  # type: ignore[arg-type]
    return WaltzClient(hosts_for(server), callbacks or Recorder(), settings)


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def threads_of_clients() -> set[threading.Thread]:
    """Also those that other tests have left behind."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("waltz-")}


def test_many_threads_submit_and_every_context_is_written_once(server: FakeServer) -> None:
    """PS-09. PM-05, PM-28, PM-37, PM-42."""
    recorder = Recorder()
    notes = [Note(f"{number}", partition=number % 2) for number in range(200)]
    with opened(server, recorder, max_concurrent_transactions=4) as client:

        def submit(own: Sequence[Note]) -> None:
            client.submit_many(own)

        threads = [threading.Thread(target=submit, args=(notes[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush(20.0)
        assert not client.has_pending_transactions()
        assert client.client_high_water_mark(0) == client.get_high_water_mark(0) == 99
    assert all(note.story == WRITTEN for note in notes)
    assert recorder.applied == {0: list(range(100)), 1: list(range(100))}
    assert sorted(recorder.data, key=int) == [b"%d" % number for number in range(200)]


def test_append_returns_the_transaction_id(server: FakeServer) -> None:
    with opened(server) as client:
        assert [client.append(1, b"x", header=3) for _ in range(3)] == [0, 1, 2]
        assert (client.client_id, client.partition_count, client.cluster_name) == (1, 2, "fake")
        assert client.cluster_key.int == 7
        with pytest.raises(NotFoundError):
            client.append(9, b"x")
    assert [header for _, header, _ in server.partitions[1].log] == [3, 3, 3]


def test_execute_runs_on_the_callers_thread_and_its_errors_reach_it(server: FakeServer) -> None:
    """PM-08, PM-09."""
    error = ValueError("no")
    raising, nothing = Note(write=error), Note(write=False)
    with opened(server, max_concurrent_transactions=1) as client:
        with pytest.raises(ValueError, match="no"):
            client.submit(raising)
        client.submit(nothing)
        client.flush()
        client.append(0, b"room was given back")
    assert raising.story == ["execute", error]
    assert nothing.story == ["execute", False]


def test_bodies_are_fetched_from_the_callbacks_thread(server: FakeServer) -> None:
    """PM-31."""
    for number in range(5):
        server.partitions[0].add(b"%d" % number)
    recorder = Recorder(prefetch=False)
    with opened(server, recorder):
        wait_until(lambda: len(recorder.data) == 5)
    assert recorder.data == [b"0", b"1", b"2", b"3", b"4"]


def test_a_callback_may_submit_but_not_wait(server: FakeServer) -> None:
    """UA-64; submits inside a callback do not wait for room."""

    class Nested(Recorder):
        client: WaltzClient
        refused = 0

        def apply_transaction(self, transaction: Transaction) -> None:
            super().apply_transaction(transaction)
            if transaction.transaction_id == 0:
                for number in range(5):
                    self.client.submit(Note(f"nested {number}"))
                for wait in (self.client.flush, self.client.close):
                    with pytest.raises(LocalProtocolError, match="inside a callback"):
                        wait()
                    self.refused += 1

    nested = Nested()
    with opened(server, nested, max_concurrent_transactions=1) as client:
        nested.client = client
        client.submit(Note())
        wait_until(lambda: len(nested.applied_in()) == 6)
        client.flush()
    assert nested.refused == 2
    assert nested.uncaught == []


def test_closing_ends_threads_and_unfinished_contexts(server: FakeServer) -> None:
    """PM-44."""
    server.partitions[0].appends_dropped = 10
    notes = [Note() for _ in range(3)]
    before = threads_of_clients()
    client = opened(server)
    assert threads_of_clients() - before
    for note in notes:
        client.submit(note)
    client.close()
    client.close()
    for note in notes:
        assert isinstance(note.story[-1], ClientClosedError)
    wait_until(lambda: threads_of_clients() <= before)
    with pytest.raises(ClientClosedError):
        client.submit(Note())
    with pytest.raises(ClientClosedError):
        client.get_high_water_mark(0)


def test_closing_ends_those_who_wait_for_room(server: FakeServer) -> None:
    server.partitions[0].appends_dropped = 10
    client = opened(server, max_concurrent_transactions=1)
    client.submit(Note())
    errors: list[Exception] = []

    def submit() -> None:
        try:
            client.submit(Note())
        except ClientClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join()
    assert len(errors) == 3


def test_closing_does_not_wait_for_ever_for_a_stuck_callback(server: FakeServer) -> None:
    """UA-63."""
    stuck, left = threading.Event(), threading.Event()

    class Stuck(Recorder):
        def apply_transaction(self, transaction: Transaction) -> None:
            stuck.wait()
            left.set()

    client = opened(server, Stuck(), close_seconds_max=0.1)
    note = Note()
    client.submit(note)
    wait_until(lambda: True in note.story)
    client.close()
    assert not left.is_set()
    stuck.set()
    assert left.wait(60)


def test_a_client_is_refused_after_a_fork(server: FakeServer) -> None:
    """PS-09. UA-60."""
    with opened(server) as client:
        client._thread._process_id = os.getpid() + 1
        note = Note()
        with pytest.raises(LocalProtocolError, match="fork"):
            client.submit(note)
        with pytest.raises(LocalProtocolError, match="fork"):
            client.flush()
        client._thread._process_id = os.getpid()


def test_a_context_out_of_time_before_there_is_room_is_given_up(server: FakeServer) -> None:
    """PM-14."""
    with opened(server, max_concurrent_transactions=1) as client:
        client.append(0, b"mounted")
        server.partitions[0].appends_dropped = 1_000_000
        first, second = Note(timeout_seconds=1.0), Note(timeout_seconds=0.05)
        client.submit(first)
        client.submit(second)
        assert second.story == ["expired"]
        wait_until(lambda: first.story == ["execute", "expired"])


def test_a_call_out_of_time_is_cancelled(server: FakeServer) -> None:
    server.partitions.pop(0)
    with opened(server, partitions=[1]) as client, pytest.raises(OperationTimeoutError):
        client.get_high_water_mark(0, timeout_seconds=0.02)


@pytest.mark.parametrize("verb", ["append", "append_many", "submit", "flush", "outcome"])
def test_a_client_whose_thread_has_ended_says_that_nothing_was_sent(
    server: FakeServer, verb: str
) -> None:
    """PM-44: and a context is told the same."""
    client = opened(server)
    client.close()
    context = Note()
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: client.append(0, b"x"),
        "append_many": lambda: client.append_many(0, [b"x"]),
        "submit": lambda: client.submit(context),
        "flush": client.flush,
        "outcome": lambda: client.outcome(REQUEST),
    }
    with pytest.raises(AlreadyClosedError, match="closed before this call") as raised:
        calls[verb]()
    assert not raised.value.may_be_written
    assert context.story == ([raised.value] if verb == "submit" else [])
