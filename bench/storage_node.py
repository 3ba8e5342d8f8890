"""A storage node as a process of its own: `python -m bench.storage_node DIRECTORY [SCRUB]`.

Prints its address and how long opening its directory took; SIGTERM stops it, and then it prints
what it has scrubbed. With SCRUB, scrubbing begins at once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.storage.support import KEY
from waltz.cli.nodes import run_loop
from waltz.host import Connection
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, Address, PartitionId
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    OpenRequest,
    StorageMessage,
    SuccessResponse,
)

LOOPBACK = Address("127.0.0.1", 0)
PARTITION = PartitionId(0)


def config(directory: str, **changes: Any) -> StorageConfig:
    values: dict[str, Any] = {
        "directory": directory,
        "cluster_key": KEY,
        "partition_count": 1,
        "data_address": LOOPBACK,
        "admin_address": LOOPBACK,
        "assigned_partitions": frozenset((PARTITION,)),
    }
    return StorageConfig(**(values | changes))


async def serve(directory: str, *scrub: str) -> None:
    scrubbing = {"scrub_start_seconds": 0.0} if scrub else {"scrub_bytes_per_second": 0}
    node = StorageNode(real_host(None), config(directory, **scrubbing))
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    began = time.perf_counter()
    await node.start()
    seconds = time.perf_counter() - began
    print(json.dumps({"address": str(node.data_address), "seconds": seconds}), flush=True)
    working, since = time.process_time(), time.perf_counter()
    await told.wait()
    report = {
        "bytes": node.state().scrub.bytes_read,
        "cpu_seconds": time.process_time() - working,
        "seconds": time.perf_counter() - since,
    }
    await node.stop()
    print(json.dumps(report), flush=True)


@dataclass
class NodeProcess:
    process: subprocess.Popen[str]
    address: Address
    ready_seconds: float
    """Seconds from the start of the process to its first line."""
    open_seconds: float
    """The node's share of that; the rest is Python."""

    def stop(self) -> dict[str, float]:
        """Stop the node; return its report on scrubbing."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        report: dict[str, float] = json.loads(self.process.stdout.readline())
        self.process.wait(60)
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@contextmanager
def running_node(directory: Path, *, scrub: bool = False) -> Iterator[NodeProcess]:
    """Start a node in the existing `directory`; it is killed if it was not stopped."""
    arguments = [str(directory), "scrub"] if scrub else [str(directory)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.storage_node", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        ready = time.perf_counter() - began
        yield NodeProcess(process, Address.parse(told["address"]), ready, told["seconds"])
    finally:
        process.kill()
        process.wait(60)


class NodeConnection:
    """One connection to a node, in order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._link = Link(STORAGE_CODEC, "bench")
        self._answers: list[Message] = []

    @classmethod
    async def open(cls, address: Address) -> Self:
        found = cls(await real_host(None).network.connect(address))
        found._connection.write(found._link.hello())
        while found._link.version is None:
            found._answers += found._link.receive(await found._connection.read())
        await found.send(OpenRequest(NO_SESSION, -1, PartitionId(-1), KEY, 1))
        await found.succeed()
        return found

    async def send(self, message: StorageMessage) -> None:
        self._connection.write(self._link.encode(message))
        await self._connection.drain()

    async def succeed(self) -> None:
        """Wait for the next answer, which must be a success."""
        answer = await self.answer()
        if not isinstance(answer, SuccessResponse):
            raise RuntimeError(f"refused: {answer}")

    async def answer(self) -> Message:
        while not self._answers:
            data = await self._connection.read()
            if not data:
                raise RuntimeError("the node has ended the connection")
            self._answers += self._link.receive(data)
        return self._answers.pop(0)

    def close(self) -> None:
        self._connection.close()


if __name__ == "__main__":
    run_loop(serve(*sys.argv[1:]))
