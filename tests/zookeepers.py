"""Real ZooKeepers for tests: a server process, looked after by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from waltz.cli.trial_directory import choose_ports
from waltz.connections.loop_thread import LoopThread
from waltz.host import Node
from waltz.spark.java import find_java, packaged_java
from waltz.system.real_host import real_host
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address, parse_coordinator

SECONDS_MAX = 60.0


def new_zookeeper(
    directory: Path,
    address: Address,
    *,
    log: Path,
    more: Sequence[str] = (),
    java: Path | None = None,
) -> ZooKeeperProcess:
    """Return one that is not started; `more` are further lines of its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    jars = packaged_jars()
    if more:
        jars += sorted(jars[0].parent.glob("netty-t*.jar"))  # with which it speaks TLS
    java = java or packaged_program()
    return ZooKeeperProcess(directory, address, java=java, jars=jars, log=log, more=more)


def packaged_program() -> Path:
    return find_java(os.environ, packaged=packaged_java()).program


class RunningZooKeeper:
    """A started server, which may be killed and started again on the same data."""

    def __init__(self, directory: Path, more: Sequence[str] = ()) -> None:
        """`more` are further lines of its configuration."""
        self._loop = LoopThread("zookeeper", asyncio.new_event_loop())
        address = Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0])
        self.process = new_zookeeper(directory, address, log=directory / "log", more=more)
        self.start()

    @property
    def address(self) -> Address:
        return self.process.address

    def start(self) -> None:
        self._loop.call(self.process.start(), SECONDS_MAX)

    def kill(self) -> None:
        self._loop.call(self.process.kill(), SECONDS_MAX)

    def close(self) -> None:
        self._loop.call(self.process.stop(), SECONDS_MAX)
        self._loop.stop()


@contextmanager
def running_zookeeper(directory: Path, *more: str) -> Iterator[RunningZooKeeper]:
    zookeeper = RunningZooKeeper(directory, more)
    try:
        yield zookeeper
    finally:
        zookeeper.close()


def tree_at(coordinator: str, root: str) -> dict[str, Node]:
    """All nodes of the cluster, by their path below its root."""

    async def below(path: str) -> dict[str, Node]:
        found = {path: await door.read(path)}
        for name in await door.children(path):
            found.update(await below(f"{path}/{name}"))
        return found

    async def main() -> dict[str, Node]:
        try:
            return await below(root)
        finally:
            await door.close()

    door = real_host(parse_coordinator(coordinator)).coordinator
    return {path.removeprefix(root): node for path, node in asyncio.run(main()).items()}
