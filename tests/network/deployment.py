"""A cluster as operators run it, each process on a machine of its own: a ZooKeeper, storage nodes,
servers, and clients that write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Final

from tests.live.launch import Cluster
from tests.live.writers import Writers
from tests.network.links import Links
from tests.zookeepers import new_zookeeper, packaged_program
from waltz.cluster.cluster_shell import StorageEntry
from waltz.types import Address, ZooKeeperAddress

ROOT: Final = "/network"
SESSION_MILLISECONDS: Final = 3_000
PARTITIONS: Final = 3
CONTEXTS_MAX: Final = 10**9
LOOK_SECONDS: Final = 0.02

STORAGES: Final = ("storage-1", "storage-2", "storage-3")
CLIENTS: Final = ("client-1", "client-2")


def server_names(count: int) -> tuple[str, ...]:
    return tuple(f"server-{number + 1}" for number in range(count))


class Deployment(Cluster):
    """Everything that runs; `directory` holds its files and logs."""

    def __init__(self, directory: Path, *, servers: int, seed: str) -> None:
        names = server_names(servers)
        self.links = Links(["zookeeper", *STORAGES, *names, *CLIENTS])
        place = Address(self.links["zookeeper"].address, 2181)
        super().__init__(directory, ZooKeeperAddress((place,), ROOT, SESSION_MILLISECONDS))
        self.writers = Writers(
            self, CLIENTS, manner="steady", contexts=CONTEXTS_MAX, partitions=PARTITIONS, seed=seed
        )
        java = directory / "java"
        command = " ".join(map(quote, [*self.inside("zookeeper"), str(packaged_program())]))
        java.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        java.chmod(0o755)
        self.zookeeper = new_zookeeper(
            directory / "zookeeper", place, log=self.logs / "zookeeper.log", java=java
        )
        for name in STORAGES:
            ports = {"port": 6000, "admin.port": 6001, "directory": str(directory / name)}
            config = self._config(name, "storage", ports | {"diskFreeMin": "64MiB"})
            self.add_node("storage", name, config, "--assign-all")
        for name in names:
            config = self._config(name, "server", {"port": 7000})
            self.add_node("server", name, config)

    def inside(self, name: str) -> Sequence[str]:
        return self.links[name].inside

    async def start(self) -> None:
        await self.zookeeper.start()
        machines = [self.links[name].address for name in STORAGES]
        await self.create(
            PARTITIONS,
            [StorageEntry(Address(each, 6000), Address(each, 6001)) for each in machines],
        )
        await self.start_nodes()
        await self.writers.start()

    def _config(self, name: str, family: str, values: dict[str, object]) -> str:
        """A file with the keys of the original; TLS is as it is with nothing said about it."""
        place = self.links["zookeeper"].address
        lines = [
            f"zookeeper.connectString: {place}:2181",
            f"zookeeper.sessionTimeout: {SESSION_MILLISECONDS}",
            f"cluster.root: {ROOT}",
            f"{family}.bindAddress: {self.links[name].address}",
            *(f"{family}.{key}: {value}" for key, value in values.items()),
        ]
        path = self.directory / f"{name}.yml"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def ended(self) -> list[str]:
        """Return the processes that have ended by themselves."""
        ended = [name for name, process in self.processes.items() if not process.runs]
        return ended if self.zookeeper.pid is not None else [*ended, "zookeeper"]

    async def seconds_until_written(self, since: float, seconds_max: float) -> float | None:
        """Return how long after `since` every client had written to every partition what it had
        begun after that; None: not in time."""
        deadline = time.monotonic() + seconds_max
        while any(self.not_writing(since)):
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - since

    def not_writing(self, since: float) -> Iterator[str]:
        """Yield who has written nothing since then, and where."""
        for name, said in self.writers.reports.items():
            begun = said.get("begun_of_committed", [-1.0] * PARTITIONS)
            for partition, moment in enumerate(begun):
                if moment < since:
                    yield f"{name} in partition {partition}"

    async def close(self) -> None:
        await super().close()
        await self.zookeeper.kill()
        self.links.close()
