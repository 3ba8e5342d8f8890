"""A ZooKeeper server of our own: found, started, kept, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import wait_until
from tests.system.coordinators import answered
from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConfigurationError
from waltz.spark.java import find_java, packaged_java
from waltz.system import zookeeper_process
from waltz.system.zookeeper import ZooKeeperCoordinator
from waltz.system.zookeeper_process import ZooKeeperProcess, configuration, packaged_jars
from waltz.types import Address

pytestmark = pytest.mark.processes


def new_process(directory: Path, address: Address | None = None) -> ZooKeeperProcess:
    return ZooKeeperProcess(
        directory,
        address or Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0]),
        java=find_java(os.environ, packaged=packaged_java()).program,
        jars=packaged_jars(),
        log=directory / "log",
    )


def play(
    directory: Path, story: Callable[[ZooKeeperProcess], Coroutine[Any, Any, None]]
) -> ZooKeeperProcess:
    process = new_process(directory)

    async def main() -> None:
        try:
            await story(process)
        finally:
            await process.stop()

    asyncio.run(main())
    return process


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_configuration_names_directory_and_address() -> None:
    lines = configuration(Path("/d/data"), Address("127.0.0.1", 2181)).splitlines()
    assert {"dataDir=/d/data", "clientPortAddress=127.0.0.1", "clientPort=2181"} <= set(lines)
    assert "admin.enableServer=false" in lines


def test_pyspark_carries_what_a_server_needs_and_little_else() -> None:
    names = [jar.name for jar in packaged_jars()]
    assert any(name.startswith("zookeeper-jute-") for name in names)
    assert len(names) < 50
    assert not any(name.startswith("netty-tcnative") for name in names)


def test_without_pyspark_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_process, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="pip install"):
        packaged_jars()


def test_a_killed_server_is_started_again_with_what_it_had_answered(tmp_path: Path) -> None:
    """CM-27: a session and its nodes outlast it."""

    async def story(process: ZooKeeperProcess) -> None:
        await process.start()
        running = asyncio.create_task(process.run())
        door = ZooKeeperCoordinator(str(process.address), session_seconds=20.0)
        await door.create("/p", b"1")
        await door.create("/e", b"", ephemeral=True)
        for restarts in (1, 2):
            pid = process.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while process.restarts < restarts:
                await asyncio.sleep(0.02)
            assert await answered(lambda: door.children("/")) == ["e", "p", "zookeeper"]
            assert process.pid != pid
        await door.close()
        await process.stop()
        await running

    process = play(tmp_path, story)
    assert process.pid is None
    asyncio.run(process.stop())


@pytest.mark.parametrize("writes_before", [0, 50])
def test_a_rebuilt_zookeeper_is_a_change_though_all_versions_are_the_same(
    tmp_path: Path, writes_before: int
) -> None:
    """Also if it knows fewer transactions of its own than the process has seen."""

    async def story(process: ZooKeeperProcess) -> None:
        await process.start()
        door = ZooKeeperCoordinator(str(process.address), session_seconds=4.0)
        await door.create("/a", b"before")
        for number in range(writes_before):
            await door.create(f"/{number}", b"")
        seen = await door.read("/a")
        waiting = asyncio.ensure_future(answered(lambda: door.changed("/a", seen)))
        address = process.address
        await process.stop()

        (tmp_path / "rebuilt").mkdir()
        rebuilt = new_process(tmp_path / "rebuilt", address)
        await rebuilt.start()
        other = ZooKeeperCoordinator(str(address), session_seconds=4.0)
        await other.create("/a", b"after")

        await waiting
        found = await answered(lambda: door.read("/a"))
        assert (found.data, found.version) == (b"after", seen.version)
        await door.changed("/a", seen)  # a wait that begins only now, too
        await door.close()
        await other.close()
        await rebuilt.stop()

    play(tmp_path, story)


def test_a_port_in_use_is_told_with_its_last_words(tmp_path: Path) -> None:
    async def story(process: ZooKeeperProcess) -> None:
        taken = await asyncio.start_server(lambda *_: None, *process.address)
        with pytest.raises(ConfigurationError, match=r"did not start.*in use"):
            await process.start()
        taken.close()

    play(tmp_path, story)


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.system.test_zookeeper_process import new_process

async def main():
    process = new_process(Path({str(tmp_path)!r}))
    await process.start()
    print(process.pid, flush=True)
    await process.run()

asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_alive(pid), "ZooKeeper lives on")
