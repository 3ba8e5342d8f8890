"""The processes of a live cluster: started, told to end, killed, and none left behind.

Owns each process with its ports, its files and its log. Knows nothing of when and why something is
done to a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from tests.clusters import ROOT
from tests.live.faults import Proxy
from tests.zookeepers import new_zookeeper
from waltz.cli.trial_directory import choose_ports
from waltz.cli.up import DISK_FREE_BYTES_TRIAL
from waltz.cluster.cluster_shell import ClusterView, StorageEntry, create_cluster
from waltz.cluster.paths import root_at
from waltz.system.real_host import real_host
from waltz.types import Address, CoordinatorAddress, ZooKeeperAddress

HOST: Final = "127.0.0.1"
WALTZ: Final = "waltz.cli.main"
START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 60.0
RESTART_SECONDS: Final = 0.5
ZOOKEEPER_AWAY: Final = ("no ZooKeeper answers", "connection to ZooKeeper at")
"""Last words of a process that could not start because the ZooKeeper was away, or went away."""


@dataclass
class RunDirectory:
    """The place of a run's files; `is_kept` unless the run went well."""

    path: Path
    is_kept: bool = True


@contextmanager
def run_directory(
    given: Path | None, name: str, *, within: Path | None = None
) -> Iterator[RunDirectory]:
    """Make the directory of a run: `given`, which must not exist and is kept, or a temporary one.

    A temporary directory, in `within` or in the system's own place, is kept as well unless the
    block sets `is_kept` to False.
    """
    directory = given or Path(tempfile.mkdtemp(prefix=f"waltz-{name}-", dir=within))
    directory.mkdir(exist_ok=given is None, parents=True)
    found = RunDirectory(directory.absolute())
    try:
        yield found
    finally:
        if given is None and not found.is_kept:
            shutil.rmtree(directory)
        else:
            print(f"the files of the run are in {directory}", flush=True)


class NotStartedError(Exception):
    """A process ended before it was ready."""


class Process:
    """A Python program that says `ready` on standard output; its log is a file.

    The program ends when its standard input does, and so at the latest with the process that
    started it.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        *command: str,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """`command` is a module and its arguments; `inside` are words that come before `python`."""
        self.name = name
        self.log = log
        self.memory_peak_bytes = 0
        """The most memory that one of its processes has had."""
        self._command = (*inside, python, "-m", *command)
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs and before it was started."""
        return None if self._process is None else self._process.returncode

    async def start(self, **environment: str) -> None:
        """Return once the process says that it is ready. Raises NotStartedError."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=os.environ | self._environment | environment,
                # Ctrl-C is for the run, which then ends all of its processes.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            said = await self._process.stdout.readline()
        if said != b"ready\n":
            await self._process.wait()
            raise NotStartedError(f"{self.name} did not start: {self.last_words()}")

    async def start_in_the_end(self) -> None:
        """Start the process again and again, as its supervisor would: the ZooKeeper may be away
        for longer than a start waits for it. Raises NotStartedError: for another reason."""
        while True:
            try:
                await self.start()
                return
            except NotStartedError:
                if not any(words in self.last_words() for words in ZOOKEEPER_AWAY):
                    raise
            await asyncio.sleep(RESTART_SECONDS)

    # Signals

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def stop(self) -> None:
        """Let the process hang, as its machine might: it answers nothing and closes nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill the process if it runs."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def end(self) -> int:
        """Ask the process to stop, as an operator does, and return its exit status."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Return the exit status of a process that is about to end."""
        assert self._process is not None
        async with asyncio.timeout(STOP_SECONDS_MAX):
            return await self._process.wait()

    # Words

    def tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def close_input(self) -> None:
        """End the standard input of the process, which ends the process in order."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def hear(self) -> dict[str, Any] | None:
        """Return what the next line of standard output says; None: the process has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        said: dict[str, Any] | None = json.loads(line) if line else None
        return said

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def last_words(self) -> str:
        """Return the last line of the log."""
        lines = self.logged().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def complaints(self) -> Iterator[str]:
        """Yield what the process has logged as errors."""
        for line in self.logged().splitlines():
            if " ERROR " in line or line.startswith("Traceback"):
                yield f"{self.name} logged: {line}"

    def note_memory(self) -> int:
        """Return what the process has in memory now, 0 if it does not run; remember the peak."""
        values = {"VmRSS": 0, "VmHWM": 0}
        if self.runs:
            assert self._process is not None
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name in values:
                        values[name] = int(value.split()[0]) * 1024
        self.memory_peak_bytes = max(self.memory_peak_bytes, values["VmHWM"])
        return values["VmRSS"]


def free_addresses(count: int) -> Iterator[Address]:
    """Return `count` unused addresses of this machine."""
    return (Address(HOST, port) for port in choose_ports(HOST, 0, count))


class Cluster:
    """Storage nodes, servers and clients; `directory` holds their files and, in `logs`, what they
    log."""

    def __init__(
        self, directory: Path, coordinator: CoordinatorAddress, *, program: str = WALTZ
    ) -> None:
        """`program` is the module that has the commands `storage` and `server`."""
        self.directory = directory
        self.coordinator = coordinator
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        self.storages: dict[str, Process] = {}
        self.servers: dict[str, Process] = {}
        self.clients: dict[str, Process] = {}
        self.trusted: tuple[str, ...] = ()
        """Options with which a command speaks to the servers, if they speak TLS."""
        self._program = program

    @property
    def nodes(self) -> dict[str, Process]:
        return self.storages | self.servers

    @property
    def processes(self) -> dict[str, Process]:
        return self.nodes | self.clients

    # What is there

    async def create(self, partitions: int, storages: Sequence[StorageEntry]) -> None:
        """Write the metadata of a new cluster."""
        door = real_host(self.coordinator).coordinator
        await create_cluster(
            door,
            name="live",
            partition_count=partitions,
            cluster_key=uuid4(),
            storages=storages,
            root=root_at(self.coordinator),
        )
        await door.close()

    def inside(self, name: str) -> Sequence[str]:
        """Return the words that come before the command of that process: where it runs."""
        return ()

    def add(
        self, name: str, *command: str, python: str = sys.executable, **environment: str
    ) -> Process:
        """Return a process of the cluster that is not started."""
        log, inside = self.logs / f"{name}.log", self.inside(name)
        return Process(name, log, *command, inside=inside, environment=environment, python=python)

    def add_node(self, role: str, name: str, *arguments: str, **environment: str) -> None:
        """Add a node whose command is `role`: a storage node, with its directory, or a server."""
        group = {"storage": self.storages, "server": self.servers}[role]
        if role == "storage":
            (self.directory / name).mkdir()
        command = (self._program, role, *arguments, "--end-with-stdin")
        group[name] = self.add(name, *command, **environment)

    def add_storage(self, name: str, entry: StorageEntry, *more: str, **environment: str) -> None:
        """Add a storage node that listens at the addresses of `entry`."""
        self.add_node(
            *("storage", name, "--coordinator", str(self.coordinator)),
            *("--address", str(entry.connect), "--admin-address", str(entry.admin)),
            *("--directory", str(self.directory / name)),
            *("--disk-free-min", str(DISK_FREE_BYTES_TRIAL), *more),
            **environment,
        )

    def add_server(
        self,
        name: str,
        address: Address,
        *more: str,
        coordinator: CoordinatorAddress | None = None,
    ) -> None:
        """Add a server that finds the coordinator at its own address, or at `coordinator`."""
        self.add_node(
            *("server", name, "--coordinator", str(coordinator or self.coordinator)),
            *("--address", str(address), *more),
        )

    def add_client(self, name: str, *command: str) -> None:
        self.clients[name] = self.add(name, *command)

    # What is done to all of it

    async def start(self) -> None:
        await self.start_nodes()

    async def start_nodes(self) -> None:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    async def start_clients(self) -> None:
        await asyncio.gather(*(client.start() for client in self.clients.values()))

    async def end_nodes(self) -> list[str]:
        """Stop servers, then storage nodes; return a violation per node that does not end well."""
        violations = []
        for group in (self.servers, self.storages):
            statuses = await asyncio.gather(*(node.end() for node in group.values()))
            violations += [
                f"{name} was told to end, and ended with {status}: {group[name].last_words()}"
                for name, status in zip(group, statuses, strict=True)
                if status
            ]
        return violations

    async def close(self) -> None:
        """End at once whatever still runs."""
        for process in self.processes.values():
            await process.kill()

    def complaints(self) -> list[str]:
        """Return what the nodes have logged as errors."""
        return [each for node in self.nodes.values() for each in node.complaints()]


class ZooKeeperCluster(Cluster):
    """A cluster on a ZooKeeper of its own, which each server may have to reach through a proxy."""

    STORAGES: Final = 3

    def __init__(
        self,
        directory: Path,
        *,
        servers: int,
        partitions: int,
        session_milliseconds: int,
        has_links: bool,
    ) -> None:
        self._addresses = free_addresses(1 + servers + 2 * self.STORAGES)
        place, session = next(self._addresses), session_milliseconds
        super().__init__(directory, ZooKeeperAddress((place,), "/live", session))
        self.zookeeper = new_zookeeper(
            directory / "zookeeper", place, log=self.logs / "zookeeper.log"
        )
        self.links = {f"server-{number}": Proxy(place) for number in range(1, servers + 1)}
        """By server, the proxy on its way to the ZooKeeper, if it does not connect directly."""
        self._has_links = has_links
        self._partitions = partitions
        self._host = real_host(self.coordinator)
        self._view = ClusterView(self._host, root="/live")
        self._names: dict[Address, str] = {}

    def owners(self) -> dict[str, list[int]]:
        """Return the partitions of each server, as this process knows them."""
        owned: dict[str, list[int]] = {name: [] for name in self.servers}
        for partition_id, (address, _) in self._view.current.partitions.items():
            owned[self._names[address]].append(partition_id)
        return owned

    async def start(self) -> None:
        await self.zookeeper.start()
        entries = [
            StorageEntry(next(self._addresses), next(self._addresses)) for _ in range(self.STORAGES)
        ]
        await self.create(self._partitions, entries)
        for number, entry in enumerate(entries, 1):
            self.add_storage(f"storage-{number}", entry, "--assign-all")
        for name, link in self.links.items():
            address = next(self._addresses)
            self._names[address] = name
            assert isinstance(self.coordinator, ZooKeeperAddress)
            way = self.coordinator
            if self._has_links:
                await link.start()
                way = ZooKeeperAddress((link.address,), way.root, way.session_milliseconds)
            self.add_server(name, address, coordinator=way)
        await self.start_nodes()
        await self._view.start()

    async def close(self) -> None:
        await super().close()
        await self._view.stop()
        await self._host.coordinator.close()
        for link in self.links.values():
            await link.stop()
        await self.zookeeper.kill()


ClusterT = TypeVar("ClusterT", bound=Cluster)


@asynccontextmanager
async def running(cluster: ClusterT) -> AsyncIterator[ClusterT]:
    """Start the cluster, and end all of its processes with the block."""
    try:
        await cluster.start()
        yield cluster
    finally:
        await asyncio.shield(cluster.close())
