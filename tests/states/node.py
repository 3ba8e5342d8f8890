"""Runs one process of the cluster: the product's own, with what a state needs in addition.

    python -m tests.states.node coordinator FILE host:port
    python -m tests.states.node storage|server ARGUMENTS of the command

A storage node's disk has as many bytes as the file named by `WALTZ_STATE_DISK` says, looked up at
each write, and hangs under the partitions of which the file next to it has the numbers, looked up
at each sync; `WALTZ_STATE_PROTOCOL` is the latest version of the protocol that the process speaks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.storage.small_disk import SmallDisk, SmallFile
from waltz.cli import server_node, storage_node
from waltz.cli.commands import waltz
from waltz.host import Host
from waltz.server.server_shell import ServerConfig
from waltz.storage.storage_node_shell import StorageConfig
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.types import Address

HANGING_SUFFIX: Final = ".hangs"
HANGING_POLL_SECONDS: Final = 0.02


class SizedDisk(SmallDisk):
    """The directory as a file system whose size a test changes, and on which partitions hang: no
    sync of a partition's files ends as long as its number stands in the file."""

    def __init__(self, directory: Path, size: Path) -> None:
        super().__init__(directory, 0)
        self._size = size
        self._hanging = size.with_suffix(HANGING_SUFFIX)

    @property
    def capacity_bytes(self) -> int:
        return int(self._size.read_text())

    @capacity_bytes.setter
    def capacity_bytes(self, _: int) -> None: ...

    def open(self, path: str, *, create: bool = False) -> SmallFile:
        file = super().open(path, create=create)
        sync, partition = file.sync, Path(path).parent.name

        def sync_when_the_disk_answers() -> None:
            while self._hanging.exists() and partition in self._hanging.read_text().split():
                time.sleep(HANGING_POLL_SECONDS)
            sync()

        file.sync = sync_when_the_disk_answers
        return file


def main(role: str, *arguments: str) -> None:
    if role == "coordinator":
        asyncio.run(run_coordinator(*arguments))
        return
    version = os.environ.get("WALTZ_STATE_PROTOCOL")
    size = os.environ.get("WALTZ_STATE_DISK")
    if role == "storage":
        if size is not None:
            directory = Path(arguments[arguments.index("--directory") + 1])
            disk = SizedDisk(directory, Path(size))

            def sized_host(*given: Any, **more: Any) -> Host:
                return replace(real_host(*given, **more), disk=disk)

            vars(storage_node)["real_host"] = sized_host
        if version is not None:
            vars(storage_node)["StorageConfig"] = partial(
                StorageConfig, protocol_version_max=int(version)
            )
    elif version is not None:
        plain = server_node.server_config

        def old_server(*given: Any) -> ServerConfig:
            return replace(plain(*given), protocol_version_max=int(version))

        vars(server_node)["server_config"] = old_server
    waltz([role, *arguments], standalone_mode=True)


async def run_coordinator(file: str, address: str) -> None:
    server = EmbeddedCoordinatorServer(file)
    await server.start(Address.parse(address))
    print("ready", flush=True)
    # Nobody tells the process anything: what can be read is the end of standard input.
    asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 0)
    await server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
