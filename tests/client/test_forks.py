"""What becomes of clients when their process forks: the child is told, the parent goes on."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, FakeServer, hosts_for, run_with_cluster, until
from tests.client.fake_cluster import server_thread as running_server
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.notes_shell import ClusterNotes
from waltz.errors import LocalProtocolError
from waltz.host import Host
from waltz.reader.blocking_reader import LogReader

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running_server(2) as started:
        yield started


def opened(server: FakeServer) -> WaltzClient:
    return WaltzClient(hosts_for(server), Recorder(), ClientOptions())


def in_child(work: Callable[[], None]) -> str:
    """Fork, do `work` there, and return what it raised, as text; empty if nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = ""
        try:
            signal.alarm(60)  # a child that hangs is a failure, not a stray process
            work()
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child died or hung: {status}; {said}"
    return said


def server_sockets(server: FakeServer) -> list[int]:
    """Descriptors of this process that are connected to the server."""
    found = []
    for name in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(name.name))) as each:
                if each.getpeername()[:2] == tuple(server.address):
                    found.append(int(name.name))
        except OSError:
            pass
    return found


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(LocalProtocolError, match="fork"):
        call()


def test_a_forked_process_is_told_by_every_call_and_the_other_goes_on(server: FakeServer) -> None:
    """UA-60."""
    note = Note()
    with opened(server) as client:
        assert client.append(0, b"before") == 0
        request_id = server.partitions[0].log[0][0]

        def work() -> None:
            for call in (
                lambda: client.submit(note),
                lambda: client.submit_many([note]),
                lambda: client.append(0, b"child"),
                client.flush,
                client.has_pending_transactions,
                client.blocked_partitions,
                client.ask_servers,
                lambda: client.client_high_water_mark(0),
                lambda: client.get_high_water_mark(0),
                lambda: client.outcome(request_id),
                lambda: client.set_partitions([0]) if client.options.partitions else client.flush(),
            ):
                refused(call)
            assert isinstance(note.story[0], LocalProtocolError), "a context is told, too"
            client.close()

        assert in_child(work) == ""
        assert client.append(0, b"after") == 1
    assert [data for _, _, data in server.partitions[0].log] == [b"before", b"after"]


def test_a_forked_process_has_none_of_the_connections(server: FakeServer) -> None:
    """UA-60: its end is nobody's, and what the parent closes is closed."""
    client = opened(server)
    assert client.append(0, b"before") == 0
    assert len(server_sockets(server)) >= 2

    def work() -> None:
        assert server_sockets(server) == []
        gc.collect()

    assert in_child(work) == ""
    assert client.append(0, b"after") == 1
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent has looked
        os._exit(0)
    os.close(reading)
    client.close()

    async def gone() -> None:
        await asyncio.wait_for(until(lambda: not server.connections), 60)

    asyncio.run(gone())
    os.close(writing)
    os.waitpid(child, 0)


def test_a_forked_process_may_open_a_client_of_its_own(server: FakeServer) -> None:
    """UA-60: the remedy that the error names."""
    with opened(server) as client:
        assert client.append(0, b"parent") == 0

        def work() -> None:
            with opened(server) as own:
                assert own.append(0, b"child") == 1
                with LogReader(hosts_for(server)) as reader:
                    assert reader.high_water_mark(0) == 1

        assert in_child(work) == ""
        assert client.append(0, b"parent again") == 2


def test_a_reader_is_refused_after_a_fork_as_well(server: FakeServer) -> None:
    """UA-60."""
    server.partitions[0].add(b"x")
    with LogReader(hosts_for(server)) as reader:

        def work() -> None:
            refused(lambda: reader.high_water_mark(0))
            refused(lambda: next(reader.read(0, 0, 1)))
            reader.close()

        assert in_child(work) == ""
        assert reader.high_water_mark(0) == 0


def _use_in_worker(client: WaltzClient, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        client.append(0, b"worker")
    except LocalProtocolError as error:
        answers.put(str(error))


def test_notes_are_not_a_forked_processs_to_close() -> None:
    released: list[str] = []

    class Coordinator:
        async def close(self) -> None:
            released.append("coordinator")

    def new_host() -> tuple[Host, Callable[[], None]]:
        host: Host = SimpleNamespace(coordinator=Coordinator())  # type: ignore[assignment]
        return host, lambda: released.append("workers")

    notes = ClusterNotes(new_host)
    assert in_child(notes.close) == ""
    assert released == []
    notes.close()
    assert released == ["coordinator", "workers"]


def test_workers_of_multiprocessing_that_are_forked_are_told(server: FakeServer) -> None:
    """UA-60: and they end by themselves, as does the parent."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with opened(server) as client:
        process = context.Process(target=_use_in_worker, args=(client, answers))
        process.start()
        assert "open one in each process" in answers.get()
        process.join(60)
        assert process.exitcode == 0
        assert client.append(0, b"parent") == 0


def test_a_client_for_asyncio_is_refused_on_the_loop_of_a_forked_process() -> None:
    """UA-60: the child runs a loop of its own, as `asyncio.run` makes one."""

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            assert await client.append(0, b"before") == 0
            request_id = cluster.server.partitions[0].log[0][0]

            async def calls() -> None:
                refused: list[Callable[[], Awaitable[object]]] = [
                    lambda: client.submit(Note()),
                    lambda: client.append(0, b"child"),
                    client.flush,
                    client.close,
                    lambda: client.get_high_water_mark(0),
                    lambda: client.outcome(request_id),
                    lambda: client.set_partitions([0]),
                ]
                for call in refused:
                    with pytest.raises(LocalProtocolError, match="after the fork"):
                        await call()

            assert in_child(lambda: asyncio.run(calls())) == ""
            assert await client.append(0, b"after") == 1

    run_with_cluster(work)


def test_a_client_for_asyncio_is_refused_on_another_loop() -> None:
    """It would wait there for ever for what happens on its own."""

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:

            async def call() -> None:
                await client.append(0, b"x")

            with pytest.raises(LocalProtocolError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, call())

    run_with_cluster(work)
