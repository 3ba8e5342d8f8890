"""The embedded coordinator's file, sessions and manners, on real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from waltz.cluster.tree import Tree
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    DirectoryInUseError,
    StorageError,
)
from waltz.host import Connection, File, Node
from waltz.limits import HELLO_BYTES_MAX
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.system import embedded_server
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.embedded_lines import PROTOCOL_VERSION, line
from waltz.system.embedded_server import (
    COORDINATOR_REQUESTS_MAX,
    EmbeddedCoordinatorServer,
    load_tree,
    save_tree,
)
from waltz.system.real_disk import RealDisk
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address

LOOPBACK = Address("127.0.0.1", 0)


def with_server(
    server: EmbeddedCoordinatorServer,
    story: Callable[[EmbeddedCoordinator], Coroutine[Any, Any, None]],
    *,
    call_seconds_max: float = 60.0,
) -> None:
    async def main() -> None:
        await server.start(LOOPBACK)
        client = EmbeddedCoordinator(server.address, call_seconds_max=call_seconds_max)
        try:
            await story(client)
        finally:
            await client.close()
            await server.stop()

    asyncio.run(main())


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; the test's own time limit is the bound."""
    while not condition():
        await asyncio.sleep(0.005)


# The file


def test_persistent_nodes_survive_a_restart_and_ephemeral_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"

    async def before(client: EmbeddedCoordinator) -> None:
        await client.create("/a", b"\x00\xff")
        await client.create("/a/null", None)
        await client.write("/a", b"new", version=0)
        assert await client.create("/a/s_", b"", ephemeral=True, sequential=True) == (
            "/a/s_0000000001"
        )
        assert (await client.read("/a")).child_version == 2

    async def after(client: EmbeddedCoordinator) -> None:
        assert await client.children("/a") == ["null"]
        assert await client.read("/a/null") == Node(None, 0, 0)
        assert await client.read("/a") == Node(b"new", 1, 3)
        assert await client.create("/a/s_", b"", ephemeral=True, sequential=True) == (
            "/a/s_0000000002"
        )

    with_server(EmbeddedCoordinatorServer(str(path)), before)
    assert json.loads(path.read_text())["format"] == "waltz coordinator"
    with_server(EmbeddedCoordinatorServer(str(path)), after)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "coordinator.json",
        "coordinator.json.lock",
    ]


def saved_tree() -> Tree:
    tree = Tree()
    tree.create("/a", b"data")
    tree.create("/a/b", None)
    return tree


def test_a_saved_tree_is_loaded_again() -> None:
    disk = SimulatedDisk(["/d"])
    assert load_tree(disk, "/d/f").snapshot() == Tree().snapshot()
    for _ in range(2):
        save_tree(disk, "/d/f", saved_tree().snapshot())
        assert load_tree(disk, "/d/f").snapshot() == saved_tree().snapshot()


def test_saving_is_one_step_whatever_a_power_cut_leaves() -> None:
    old, new = Tree().snapshot(), saved_tree().snapshot()
    random = Random(1)

    class PowerCutError(Exception):
        pass

    for operations in range(20):
        disk = SimulatedDisk(["/d"])
        save_tree(disk, "/d/f", old)
        left = [operations]

        def fault(_: DiskOperation, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise PowerCutError(path)

        disk.fault = fault
        try:
            save_tree(disk, "/d/f", new)
            finished = True
        except PowerCutError:
            finished = False
        for _ in range(10):
            clone = disk.crash_clone(random)
            found = load_tree(clone, "/d/f").snapshot()
            assert found == new if finished else found in (old, new)
            save_tree(clone, "/d/f", new)
            assert load_tree(clone, "/d/f").snapshot() == new
    assert finished


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    save_tree(RealDisk(), str(path), saved_tree().snapshot())
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole) - 1, 7)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole) - 1)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"coordinator\.json is damaged"):
            asyncio.run(EmbeddedCoordinatorServer(str(path)).start(LOOPBACK))
        assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"[]\n", b"{}\n", line(format="x"), line(version=2)])
def test_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="damaged"):
        load_tree(RealDisk(), str(path))


def test_one_server_at_a_time_uses_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "f")

    async def story(_: EmbeddedCoordinator) -> None:
        with pytest.raises(DirectoryInUseError):
            await EmbeddedCoordinatorServer(path).start(LOOPBACK)

    with_server(EmbeddedCoordinatorServer(path), story)
    with_server(EmbeddedCoordinatorServer(path), nothing)


async def nothing(_: EmbeddedCoordinator) -> None:
    pass


def test_a_port_in_use_leaves_the_file_free(tmp_path: Path) -> None:
    async def story() -> None:
        first = EmbeddedCoordinatorServer(str(tmp_path / "one"))
        await first.start(LOOPBACK)
        with pytest.raises(ConfigurationError, match=f"port {first.address.port}"):
            await EmbeddedCoordinatorServer(str(tmp_path / "two")).start(first.address)
        second = EmbeddedCoordinatorServer(str(tmp_path / "two"))
        await second.start(LOOPBACK)
        await second.stop()
        await first.stop()
        await first.stop()

    asyncio.run(story())


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "missing" / "f"))
    with pytest.raises(ConfigurationError, match="missing"):
        asyncio.run(server.start(LOOPBACK))


class StallingDisk(RealDisk):
    """Renames nothing until it is let."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def rename(self, source: str, target: str) -> None:
        self.released.wait()
        super().rename(source, target)


def test_nothing_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    """Neither to the writer, nor to whoever reads or waits for what was written."""
    disk = StallingDisk()
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"), disk=disk)

    async def story(client: EmbeddedCoordinator) -> None:
        other = EmbeddedCoordinator(server.address)
        waiting = asyncio.ensure_future(other.changed("/a", None))
        assert await other.children("/") == []
        writing = asyncio.ensure_future(client.create("/a", b""))
        await eventually(lambda: server._revision == 1)
        reading = asyncio.ensure_future(other.children("/"))
        await eventually(lambda: len(server._answers) == 3)
        told = [call.done() for call in (writing, waiting, reading)]
        disk.released.set()
        assert not any(told)
        await waiting
        assert (await writing, await reading) == ("/a", ["a"])
        await other.close()

    with_server(server, story)


def test_a_disk_that_fails_ends_the_service_without_an_answer(tmp_path: Path) -> None:
    class FailingDisk(RealDisk):
        def open(self, path: str, *, create: bool = False) -> File:
            if path.endswith(".new"):
                raise OSError(28, "No space left on device")
            return super().open(path, create=create)

    server = EmbeddedCoordinatorServer(str(tmp_path / "f"), disk=FailingDisk())

    async def story(client: EmbeddedCoordinator) -> None:
        running = asyncio.ensure_future(server.run())
        with pytest.raises(CoordinatorLostError):
            await client.create("/a", b"")
        with pytest.raises(StorageError, match="No space left"):
            await running
        with pytest.raises(CoordinatorLostError):
            await client.read("/")

    with_server(server, story, call_seconds_max=1.0)
    with_server(EmbeddedCoordinatorServer(str(tmp_path / "f")), nothing)


def test_run_returns_when_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        server = EmbeddedCoordinatorServer(str(tmp_path / "f"))
        await server.start(LOOPBACK)
        running = asyncio.ensure_future(server.run())
        await asyncio.sleep(0)
        await server.stop()
        await running

    asyncio.run(story())


# Manners


async def conversation(server: EmbeddedCoordinatorServer, *lines: bytes) -> bytes:
    """Say `lines` and return what the server answers until it ends the connection."""
    connection: Connection = await RealNetwork().connect(server.address)
    for each in lines:
        connection.write(each)
    answers = b""
    while data := await connection.read():
        answers += data
    connection.close()
    return answers


HELLO = line(coordinator=PROTOCOL_VERSION, session=None)


@pytest.mark.parametrize(
    "lines",
    [
        (b"GET / HTTP/1.1\r\n\r\n",),
        (line(coordinator=PROTOCOL_VERSION + 1, session=None),),
        (line(id=1, call="read", path="/"),),
        (HELLO, b"[]\n"),
        (HELLO, line(id=1)),
        (HELLO, line(id=1, call="read")),
        (HELLO, line(id="1", call="ping")),
        (HELLO, line(id=1, call="write", path="/a", data=None, version=0)),
        (HELLO, line(id=1, call="create", path="/a", data="?", ephemeral=False, sequential=False)),
        (HELLO, line(id=1, call="changed", path="/a", seen=[1])),
        (HELLO, *(line(id=n, call="changed", path="/no", seen=None) for n in
                  range(COORDINATOR_REQUESTS_MAX + 1))),
    ],
)  # fmt: skip
def test_a_client_that_breaks_the_rules_is_cut_off(
    tmp_path: Path, lines: tuple[bytes, ...]
) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        answers = await conversation(server, *lines)
        assert b'"result"' not in answers
        assert await client.children("/") == []

    with_server(server, story)


def test_a_bad_path_is_the_callers_fault_and_nothing_more(tmp_path: Path) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        for call in ("read", "changed"):
            answers = await conversation(
                server, HELLO, line(id=1, call=call, path="a", seen=None), b"the end\n"
            )
            assert b'"error":"LocalProtocolError"' in answers

    with_server(server, story)


def test_an_unknown_session_is_replaced(tmp_path: Path) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        answers = await conversation(
            server, line(coordinator=PROTOCOL_VERSION, session="gone"), b"the end\n"
        )
        assert json.loads(answers)["session"] != "gone"

    with_server(server, story)


def test_who_does_not_greet_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded_server, "HANDSHAKE_SECONDS_MAX", 0.2)
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        assert await conversation(server, b"{") == b""

    with_server(server, story)
    assert "error=no greeting" in caplog.text


def test_a_greeting_is_short(tmp_path: Path) -> None:
    """Afterwards a line may hold a node's data."""
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        assert await conversation(server, b'{"' + bytes(HELLO_BYTES_MAX)) == b""
        await client.create("/large", bytes(2 * HELLO_BYTES_MAX))
        assert len((await client.read("/large")).data or b"") == 2 * HELLO_BYTES_MAX

    with_server(server, story)


def test_a_new_connection_of_a_session_ends_the_old_one(tmp_path: Path) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"))

    async def story(client: EmbeddedCoordinator) -> None:
        old = await RealNetwork().connect(server.address)
        old.write(HELLO)
        session = json.loads(await old.read())["session"]
        new = await RealNetwork().connect(server.address)
        new.write(line(coordinator=PROTOCOL_VERSION, session=session))
        assert json.loads(await new.read())["session"] == session
        assert await old.read() == b""
        new.write(line(id=1, call="ping"))
        assert json.loads(await new.read()) == {"id": 1, "result": None}
        new.close()

    with_server(server, story)


def test_a_session_that_says_nothing_ends(tmp_path: Path) -> None:
    server = EmbeddedCoordinatorServer(str(tmp_path / "f"), session_seconds=5.0)

    async def story(client: EmbeddedCoordinator) -> None:
        create = line(id=1, call="create", path="/e", data=None, ephemeral=True, sequential=False)
        answers = await conversation(server, HELLO, create)
        assert b'"result":"/e"' in answers
        while await client.children("/") != []:
            await asyncio.sleep(0.01)

    with_server(server, story)
