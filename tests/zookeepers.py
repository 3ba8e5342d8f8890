"""Real ZooKeepers for tests: a server process, looked after by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waltz.cli.layout import choose_ports
from waltz.spark.java import find_java, packaged_java
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address

SECONDS_MAX = 60.0


class RunningZooKeeper:
    """A started server, which may be killed and started again on the same data."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        directory.mkdir(parents=True, exist_ok=True)
        self.process = ZooKeeperProcess(
            directory,
            Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0]),
            java=find_java(os.environ, packaged=packaged_java()).program,
            jars=packaged_jars(),
            log=directory / "log",
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
def running_zookeeper(directory: Path) -> Iterator[RunningZooKeeper]:
    zookeeper = RunningZooKeeper(directory)
    try:
        yield zookeeper
    finally:
        zookeeper.close()
