"""Real ZooKeepers for tests: a server process, looked after by a loop in a thread of its own; and
what may stand between it and a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConnectionFailedError
from waltz.host import Connection, Listener, Node
from waltz.spark.java import find_java, packaged_java
from waltz.system.real_host import real_host
from waltz.system.tcp_network import RealNetwork
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address, parse_coordinator

SECONDS_MAX = 60.0


class RunningZooKeeper:
    """A started server, which may be killed and started again on the same data."""

    def __init__(self, directory: Path, more: Sequence[str] = ()) -> None:
        """`more` are further lines of its configuration."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        directory.mkdir(parents=True, exist_ok=True)
        jars = packaged_jars()
        if more:
            jars += sorted(jars[0].parent.glob("netty-t*.jar"))  # with which it speaks TLS
        self.process = ZooKeeperProcess(
            directory,
            Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0]),
            java=find_java(os.environ, packaged=packaged_java()).program,
            jars=jars,
            log=directory / "log",
            more=more,
        )
        self.start()

    @property
    def address(self) -> Address:
        return self.process.address

    def start(self) -> None:
        self._run(self.process.start())

    def kill(self) -> None:
        self._run(self.process.kill())

    def close(self) -> None:
        self._run(self.process.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(SECONDS_MAX)


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


class Proxy:
    """Stands before a server; bytes pass each way while the gate of that way is open."""

    def __init__(self, target: Address) -> None:
        self.requests = asyncio.Event()
        self.answers = asyncio.Event()
        self.requests.set()
        self.answers.set()
        self.clients: set[Connection] = set()
        self._target = target
        self._network = RealNetwork()
        self._listener: Listener | None = None

    @property
    def address(self) -> Address:
        assert self._listener is not None
        return self._listener.address

    async def start(self) -> None:
        await self.listen(Address("127.0.0.1", 0))

    async def listen(self, address: Address) -> None:
        self._listener = await self._network.listen(address, self._accept)

    async def stop(self) -> None:
        """Nobody can connect any more, and connections end."""
        assert self._listener is not None
        await self._listener.close()
        self.cut()

    def cut(self) -> None:
        for connection in list(self.clients):
            connection.close()

    async def _accept(self, near: Connection) -> None:
        try:
            far = await self._network.connect(self._target)
        except ConnectionFailedError:
            near.close()
            return
        self.clients.add(near)
        ways = [
            asyncio.create_task(self._pass(near, far, self.requests)),
            asyncio.create_task(self._pass(far, near, self.answers)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        far.close()
        self.clients.discard(near)

    async def _pass(self, source: Connection, target: Connection, gate: asyncio.Event) -> None:
        while data := await source.read():
            await gate.wait()
            target.write(data)
