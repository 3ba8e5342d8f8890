"""A cluster as operators run it, each process on a machine of its own: a ZooKeeper, storage nodes,
servers, and clients that write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.network.links import Links
from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.system.real_host import real_host
from waltz.types import Address, ZooKeeperAddress

ROOT: Final = "/network"
SESSION_MILLISECONDS: Final = 3_000
PARTITIONS: Final = 3
START_SECONDS_MAX: Final = 120.0

STORAGES: Final = ("storage-1", "storage-2", "storage-3")
CLIENTS: Final = ("client-1", "client-2")


def server_names(count: int) -> tuple[str, ...]:
    return tuple(f"server-{number + 1}" for number in range(count))


def wait_until(condition: Callable[[], bool], seconds_max: float) -> bool:
    """Return whether `condition()` came to hold in time."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Told:
    """What one client writes down, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()
        self._rest = ""
        self.lines: list[list[Any]] = []
        self.written_of: dict[int, float] = {}
        """Per partition when the newest transaction that was written had been sent."""
        self._sent: dict[str, float] = {}

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            found = json.loads(line)
            self.lines.append(found)
            match found:
                case ["sent", _, data, seconds]:
                    self._sent[data] = seconds
                case ["written", partition, data, _, _]:
                    self.written_of[partition] = self._sent[data]


class Deployment:
    """Everything that runs; `directory` holds its files and logs."""

    def __init__(self, directory: Path, *, servers: int) -> None:
        self.directory = directory
        self.servers = server_names(servers)
        self.links = Links(["zookeeper", *STORAGES, *self.servers, *CLIENTS])
        self._processes: dict[str, subprocess.Popen[str]] = {}
        place = Address(self.links["zookeeper"].address, 2181)
        self.coordinator = ZooKeeperAddress((place,), ROOT, SESSION_MILLISECONDS)
        self.told: dict[str, Told] = {}

    async def start(self) -> None:
        self._start("zookeeper", "tests.network.zookeeper", str(self.directory / "zookeeper"),
                    str(self.coordinator.servers[0]))  # fmt: skip
        self._until_ready("zookeeper")
        door = real_host(self.coordinator).coordinator
        await create_cluster(
            door,
            name="network",
            partition_count=PARTITIONS,
            cluster_key=UUID(int=77),
            storages=[StorageEntry(self.data(name), self.admin(name)) for name in STORAGES],
            root=ROOT,
        )
        await door.close()
        for name in STORAGES:
            (self.directory / name).mkdir()
            ports = {"port": 6000, "admin.port": 6001, "directory": str(self.directory / name)}
            config = self._config(name, "storage", ports | {"diskFreeMin": "64MiB"})
            self._start(name, "waltz.cli.main", "storage", config, "--assign-all")
        for name in self.servers:
            config = self._config(name, "server", {"port": 7000})
            self._start(name, "waltz.cli.main", "server", config)
        for name in (*STORAGES, *self.servers):
            self._until_ready(name)
        for name in CLIENTS:
            with (self.directory / f"{name}.jsonl").open("w") as heard:
                self._start(name, "tests.network.writer", str(self.coordinator), name, out=heard)
            self.told[name] = Told(self.directory / f"{name}.jsonl")

    def data(self, name: str) -> Address:
        return Address(self.links[name].address, 6000)

    def admin(self, name: str) -> Address:
        return Address(self.links[name].address, 6001)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def _config(self, name: str, family: str, values: dict[str, object]) -> str:
        """A file with the keys of the original; TLS is as it is with nothing said about it."""
        lines = [
            f"zookeeper.connectString: {self.coordinator.servers[0]}",
            f"zookeeper.sessionTimeout: {SESSION_MILLISECONDS}",
            f"cluster.root: {ROOT}",
            f"{family}.bindAddress: {self.links[name].address}",
            *(f"{family}.{key}: {value}" for key, value in values.items()),
        ]
        path = self.directory / f"{name}.yml"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def _start(self, name: str, module: str, *arguments: str, out: Any = subprocess.PIPE) -> None:
        ends = ["--end-with-stdin"] if module == "waltz.cli.main" else []
        with (self.directory / f"{name}.log").open("a") as log:
            self._processes[name] = subprocess.Popen(
                [*self.links[name].inside, sys.executable, "-m", module, *arguments, *ends],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def _until_ready(self, name: str) -> None:
        process = self._processes[name]
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "ready\n", f"{name} did not start: {self.log(name)[-2000:]}"

    def ended(self) -> list[str]:
        """The processes that have ended by themselves."""
        return [name for name, each in self._processes.items() if each.poll() is not None]

    def seconds_until_written(self, since: float, seconds_max: float) -> float | None:
        """How long after `since` every client had written to every partition what it had sent
        after that; None: not in time."""

        def is_written() -> bool:
            for told in self.told.values():
                told.read()
            return all(
                told.written_of.get(partition, -1.0) >= since
                for told in self.told.values()
                for partition in range(PARTITIONS)
            )

        is_in_time = wait_until(is_written, seconds_max)
        return time.monotonic() - since if is_in_time else None

    def not_writing(self, since: float) -> Iterator[str]:
        for name, told in self.told.items():
            for partition in range(PARTITIONS):
                if told.written_of.get(partition, -1.0) < since:
                    yield f"{name} in partition {partition}"

    def stop(self, *names: str) -> None:
        """Tell them to stop, one after the other, and wait for their end."""
        for name in names:
            process = self._processes[name]
            assert process.stdin is not None
            process.stdin.close()
            status = process.wait(60)
            assert status == 0, f"{name} ended with {status}: {self.log(name)[-2000:]}"

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.links.close()
