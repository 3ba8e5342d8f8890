"""A cluster of processes on a real ZooKeeper, and what may be done to each of them.

Owns the processes and the way of each server to the ZooKeeper, which leads through a proxy. Knows
nothing of when and why something is done to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.zookeepers import Proxy
from waltz.cli.trial_directory import choose_ports
from waltz.cli.up import DISK_FREE_BYTES_TRIAL
from waltz.cluster.cluster_shell import ClusterView, StorageEntry, create_cluster
from waltz.spark.java import find_java, packaged_java
from waltz.system.real_host import real_host
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address, ZooKeeperAddress

HOST = "127.0.0.1"
ROOT = "/smoke"
STORAGES = 3
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
RESTART_SECONDS = 0.5
NO_ZOOKEEPER = "no ZooKeeper answers"


class NotStartedError(Exception):
    """A process ended before it was ready."""


@dataclass
class Node:
    """A server or a storage node: how to start it, and what runs now."""

    name: str
    address: Address
    arguments: list[str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    memory_peak_bytes: int = 0
    """The most that one of its processes has had."""

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def start(self) -> None:
        """Return once the process says that it is ready. Raises NotStartedError."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "waltz.cli.main", *self.arguments, "--end-with-stdin"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the one who started it, who then stops all of them.
                start_new_session=True,
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            said = await self.process.stdout.readline()
        if said != b"ready\n":
            await self.process.wait()
            raise NotStartedError(f"{self.name} did not start: {self.last_words()}")

    async def start_in_the_end(self) -> None:
        """Start the process again and again, as its supervisor would: the ZooKeeper may be away
        for longer than a start waits for it. Raises NotStartedError: for another reason."""
        while True:
            try:
                await self.start()
                return
            except NotStartedError:
                if NO_ZOOKEEPER not in self.last_words():
                    raise
            await asyncio.sleep(RESTART_SECONDS)

    def last_words(self) -> str:
        """The last line of the log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        await self.process.wait()

    async def end(self) -> int:
        """Ask it to stop, as an operator does, and return its exit status."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS_MAX):
            return await self.process.wait()

    def note_memory(self) -> int:
        """Return what the process has in memory now, 0 if there is none; remember the peak."""
        if not self.runs:
            return 0
        assert self.process is not None
        now, peak = memory_bytes(self.process.pid)
        self.memory_peak_bytes = max(self.memory_peak_bytes, peak)
        return now


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, now and at most; 0 if it is gone."""
    values = {"VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in values:
                values[name] = int(value.split()[0]) * 1024
    return values["VmRSS"], values["VmHWM"]


class Cluster:
    """A ZooKeeper, storage nodes and servers, in `directory`; started by `running_cluster`."""

    def __init__(
        self,
        directory: Path,
        *,
        servers: int,
        partitions: int,
        session_milliseconds: int,
        has_links: bool,
    ) -> None:
        self.directory = directory
        self.partitions = partitions
        self.session_milliseconds = session_milliseconds
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        (directory / "zookeeper").mkdir()
        ports = iter(choose_ports(HOST, 0, 1 + servers + 2 * STORAGES))
        self.zookeeper = ZooKeeperProcess(
            directory / "zookeeper",
            Address(HOST, next(ports)),
            java=find_java(os.environ, packaged=packaged_java()).program,
            jars=packaged_jars(),
            log=self.logs / "zookeeper.log",
        )
        self.links = {
            f"server-{number}": Proxy(self.zookeeper.address) for number in range(1, servers + 1)
        }
        """How each server reaches the ZooKeeper, if not directly."""
        self._has_links = has_links
        self.servers: dict[str, Node] = {}
        self.storages: dict[str, Node] = {}
        self._ports = ports
        self._view_host = real_host(self._coordinator(self.zookeeper.address))
        self.view = ClusterView(self._view_host, root=ROOT)

    def _coordinator(self, address: Address) -> ZooKeeperAddress:
        return ZooKeeperAddress((address,), ROOT, self.session_milliseconds)

    @property
    def coordinator(self) -> str:
        return str(self._coordinator(self.zookeeper.address))

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self.servers | self.storages

    def owners(self) -> dict[str, list[int]]:
        """The partitions of each server, as this process knows them."""
        names = {node.address: name for name, node in self.servers.items()}
        owned: dict[str, list[int]] = {name: [] for name in self.servers}
        for partition_id, (address, _) in self.view.current.partitions.items():
            owned[names[address]].append(partition_id)
        return owned

    async def start(self) -> None:
        await self.zookeeper.start()
        if self._has_links:
            for link in self.links.values():
                await link.start()
        storages = {
            f"storage-{number}": StorageEntry(
                Address(HOST, next(self._ports)), Address(HOST, next(self._ports))
            )
            for number in range(1, STORAGES + 1)
        }
        await create_cluster(
            self._view_host.coordinator,
            name="smoke",
            partition_count=self.partitions,
            cluster_key=uuid4(),
            storages=list(storages.values()),
            root=ROOT,
        )
        for name, entry in storages.items():
            (self.directory / name).mkdir()
            arguments = [
                *("storage", "--coordinator", self.coordinator),
                *("--address", str(entry.connect), "--admin-address", str(entry.admin)),
                *("--directory", str(self.directory / name)),
                *("--disk-free-min", str(DISK_FREE_BYTES_TRIAL), "--assign-all"),
            ]
            self.storages[name] = Node(name, entry.connect, arguments, self.logs / f"{name}.log")
        for name, link in self.links.items():
            address = Address(HOST, next(self._ports))
            way = link.address if self._has_links else self.zookeeper.address
            arguments = [
                *("server", "--coordinator", str(self._coordinator(way))),
                *("--address", str(address)),
            ]
            self.servers[name] = Node(name, address, arguments, self.logs / f"{name}.log")
        await self.start_nodes()
        await self.view.start()

    async def start_nodes(self) -> None:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    async def end_nodes(self) -> dict[str, int]:
        """Stop servers, then storage nodes, in order; return their exit statuses."""
        statuses: dict[str, int] = {}
        for group in (self.servers, self.storages):
            found = await asyncio.gather(*(node.end() for node in group.values()))
            statuses.update(zip(group, found, strict=True))
        return statuses

    async def close(self) -> None:
        """End whatever still runs, at once."""
        for node in self.nodes.values():
            if node.runs:
                await node.kill()
        await self.view.stop()
        await self._view_host.coordinator.close()
        for link in self.links.values():
            with contextlib.suppress(AssertionError):  # not started
                await link.stop()
        await self.zookeeper.kill()

    def complaints(self) -> Iterator[str]:
        """What the nodes have logged as errors."""
        for name, node in self.nodes.items():
            for line in node.log.read_text(errors="replace").splitlines():
                if " ERROR " in line or line.startswith("Traceback"):
                    yield f"{name} logged: {line}"


@asynccontextmanager
async def running_cluster(
    directory: Path,
    *,
    servers: int,
    partitions: int,
    session_milliseconds: int,
    has_links: bool,
) -> AsyncIterator[Cluster]:
    """Run a new cluster in `directory`, which does not exist, for as long as the block.

    `has_links`: the servers reach the ZooKeeper through this process, which must not be busy, and
    may be cut off there.
    """
    cluster = Cluster(
        directory,
        servers=servers,
        partitions=partitions,
        session_milliseconds=session_milliseconds,
        has_links=has_links,
    )
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
