"""A cluster whose processes are replaced one by one under load, each by one that plays the same
role in another way: another release, or a peer that speaks as the Java original does.

Owns which manner plays which role now, and how the end of a step is seen: every replica holds what
was acknowledged after the step, by its files.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from tests.live.ending import missing_replicas
from tests.live.launch import HOST, WALTZ, Cluster, Process, free_addresses
from tests.rolling.accounts import (
    Account,
    acknowledged,
    judge,
    last_held,
    read_account,
    read_replicas,
)
from tests.zookeepers import new_zookeeper
from waltz.cli.certificate_directory import CertificateDirectory
from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.cluster.paths import root_at
from waltz.system.certificates import Identity
from waltz.system.real_host import real_host
from waltz.system.zookeeper_process import ZooKeeperProcess
from waltz.types import Address, ZooKeeperAddress

WRITER: Final = "tests.rolling.writer"
STEP_SECONDS_MAX: Final = 120.0
LOOK_SECONDS: Final = 0.1
MORE: Final = 20
"""Transactions of each partition that are acknowledged after a step before the step is over."""


@dataclass(frozen=True)
class Manner:
    """A way to play roles: a Python, and the modules that it runs."""

    name: str
    python: str = sys.executable
    program: str = WALTZ
    writer: str = WRITER
    writer_arguments: tuple[str, ...] = ()
    by_request: bool = False
    """The writer's transactions are known by their request IDs."""
    reports: bool = True
    """A server in this manner tells of its replicas."""


class Road:
    """Three storage nodes, servers and one writer at a time; `manners` has what plays each now."""

    STORAGES: Final = 3

    def __init__(
        self,
        directory: Path,
        first: Manner,
        *,
        servers: int,
        partitions: int,
        cluster_key: UUID,
        has_zookeeper: bool = False,
        speaks_tls: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        """`has_zookeeper`: the coordinator is a ZooKeeper, else it is ours. `speaks_tls`: servers,
        storage nodes and clients do, with one certificate; ours as a coordinator does not."""
        assert has_zookeeper or not speaks_tls
        self.directory = directory
        self.journals = directory / "journals"
        self.journals.mkdir(parents=True)
        self.partitions = partitions
        addresses = free_addresses(1 + servers + 2 * self.STORAGES)
        place = next(addresses)
        self.cluster = Cluster(
            directory / "cluster",
            ZooKeeperAddress((place,), "/road", None) if has_zookeeper else place,
        )
        self._coordinator = (
            self._zookeeper(place)
            if has_zookeeper
            else self.cluster.add(
                *("coordinator", "tests.states.node", "coordinator"),
                *(str(directory / "coordinator.json"), str(place)),
            )
        )
        if speaks_tls:
            self.cluster.trusted = options_of_a_certificate(directory / "tls")
        self._entries = {
            f"storage-{number}": StorageEntry(next(addresses), next(addresses))
            for number in range(1, self.STORAGES + 1)
        }
        self._servers = {f"server-{number}": next(addresses) for number in range(1, servers + 1)}
        self._key = cluster_key
        self._first = first
        self._say = say
        self._generations = itertools.count(1)
        self.manners: dict[str, Manner] = {}
        self.accounts: dict[str, bool] = {}
        """Names of all writers that there were, and whether their accounts are by request."""
        self.steps: list[str] = []
        """The steps that are over."""

    # Names

    @property
    def storages(self) -> list[str]:
        return list(self._entries)

    @property
    def servers(self) -> list[str]:
        return list(self._servers)

    @property
    def writer(self) -> str:
        return list(self.accounts)[-1]

    def files(self, storage: str) -> Path:
        return self.cluster.directory / storage

    # Beginning and ending

    async def start(self) -> None:
        await self._coordinator.start()
        door = real_host(self.cluster.coordinator).coordinator
        await create_cluster(
            door,
            name="road",
            partition_count=self.partitions,
            cluster_key=self._key,
            storages=list(self._entries.values()),
            root=root_at(self.cluster.coordinator),
        )
        await door.close()
        for name in self.storages:
            if not self.files(name).exists():
                self.files(name).mkdir()
        await asyncio.gather(*(self._start(name, self._first) for name in self.storages))
        await asyncio.gather(*(self._start(name, self._first) for name in self.servers))
        await self._start_writer(self._first)
        await self.step_is_over("the beginning")

    async def close(self) -> None:
        await self.cluster.close()
        await self._coordinator.kill()

    def _zookeeper(self, place: Address) -> ZooKeeperProcess:
        log = self.cluster.logs / "zookeeper.log"
        return new_zookeeper(self.cluster.directory / "zookeeper", place, log=log)

    # Steps

    async def replace(self, name: str, manner: Manner) -> None:
        """Stop a node in order, have `manner` play its role, and return once the step is over."""
        await self._stop(name)
        await self._start(name, manner)
        await self.step_is_over(f"{name} is played by {manner.name}")

    async def crash_and_replace(self, name: str, manner: Manner) -> None:
        """As `replace`, but the node that plays the role now is killed."""
        await self.cluster.nodes[name].kill()
        await self._start(name, manner)
        await self.step_is_over(f"{name} was killed, and is played by {manner.name}")

    async def replace_writer(self, manner: Manner) -> None:
        """Start a writer, and then stop the one before it."""
        before = self.cluster.clients[self.writer]
        await self._start_writer(manner)
        await self._stop_writer(before)
        await self.step_is_over(f"the client is played by {manner.name}")

    async def crash_coordinator(self) -> None:
        """Kill the coordinator, start it again on its files, and return once the step is over."""
        await self._coordinator.kill()
        await self._coordinator.start()
        await self.step_is_over("the coordinator was killed, and is there again")

    async def step_is_over(self, step: str) -> None:
        """Return once each partition has taken appends after the step, and every replica holds
        them, by its files; if the servers tell of replicas, all take part by `waltz status` too.
        Raises AssertionError."""
        begun = time.monotonic()
        before = acknowledged(self.journals)
        wanted: dict[int, int] = {}
        while True:
            now = acknowledged(self.journals)
            for partition in range(self.partitions):
                if now.get(partition, -1) >= before.get(partition, -1) + MORE:
                    wanted.setdefault(partition, now[partition])
            behind = {
                (name, partition): (held, mark)
                for name in self.storages
                for partition, mark in wanted.items()
                if (held := last_held(self.files(name), partition)) < mark
            }
            if len(wanted) == self.partitions and not behind:
                break
            for process in self.cluster.processes.values():
                assert process.runs or process.status == 0, (
                    f"{step}: {process.name} has ended: {process.last_words()}"
                )
            assert time.monotonic() - begun < STEP_SECONDS_MAX, (
                f"{step}: not over; acknowledged {before}, then {now}; behind: {behind}"
            )
            await asyncio.sleep(LOOK_SECONDS)
        if all(self.manners[name].reports for name in self.servers):
            violations = await missing_replicas(self.cluster)
            assert not violations, f"{step}: {violations}"
        self.steps.append(step)
        count = sum(wanted.values()) + len(wanted)
        self._say(f"{step}: {count} in the log, after {time.monotonic() - begun:.1f} s")

    async def judged(self) -> list[str]:
        """Stop everything in order and return the violations, by the replicas' files."""
        await self._stop_writer(self.cluster.clients[self.writer])
        if all(self.manners[name].reports for name in self.servers):
            violations = await missing_replicas(self.cluster)
        else:
            violations = await self._unequal_replicas()
        violations += await self.cluster.end_nodes()
        log, differences = await asyncio.to_thread(
            read_replicas, [self.files(name) for name in self.storages]
        )
        accounts = self.read_accounts()
        told = sum(len(each.told) for each in accounts)
        unknown = sum(each.unknown for each in accounts)
        self._say(f"{told} acknowledged, {unknown} unknown, by {len(accounts)} clients")
        return [*violations, *differences, *judge(log, accounts)]

    def read_accounts(self) -> list[Account]:
        return [
            read_account(self.journals / f"{name}.txt", by_request=by_request)
            for name, by_request in self.accounts.items()
        ]

    # Inside

    async def _unequal_replicas(self) -> list[str]:
        """Return once all replicas' files reach as far, or a violation."""
        begun = time.monotonic()
        while time.monotonic() - begun < STEP_SECONDS_MAX:
            ends = {
                tuple(last_held(self.files(name), each) for each in range(self.partitions))
                for name in self.storages
            }
            if len(ends) == 1:
                return []
            await asyncio.sleep(LOOK_SECONDS)
        return [f"replicas reach differently far: {ends}"]

    async def _stop(self, name: str) -> None:
        status = await self.cluster.nodes[name].end()
        last = self.cluster.nodes[name].last_words()
        assert status == 0, f"{name} was told to end, and ended with {status}: {last}"

    async def _stop_writer(self, process: Process) -> None:
        process.close_input()
        assert await process.wait() == 0, f"{process.name}: {process.last_words()}"

    async def _start(self, name: str, manner: Manner) -> None:
        role = name.partition("-")[0]
        arguments = self._arguments(name)
        command = (manner.program, role, *arguments, "--end-with-stdin")
        process = self.cluster.add(name, *command, python=manner.python)
        group = self.cluster.storages if role == "storage" else self.cluster.servers
        group[name] = process
        self.manners[name] = manner
        await process.start()

    def _arguments(self, name: str) -> Iterator[str]:
        yield from ("--coordinator", str(self.cluster.coordinator))
        yield from self.cluster.trusted
        if name in self._servers:
            yield from ("--address", str(self._servers[name]))
            return
        entry = self._entries[name]
        yield from ("--address", str(entry.connect), "--admin-address", str(entry.admin))
        yield from ("--directory", str(self.files(name)))
        yield from ("--disk-free-min", "64MiB", "--assign-all")

    async def _start_writer(self, manner: Manner) -> None:
        name = f"{manner.name}-{next(self._generations)}"
        journal = self.journals / f"{name}.txt"
        place = str(self.cluster.coordinator)
        own = (*manner.writer_arguments, *self.cluster.trusted)
        command = (manner.writer, place, str(journal), name, *own)
        process = self.cluster.add(name, *command, python=manner.python)
        self.cluster.clients[name] = process
        self.accounts[name] = manner.by_request
        await process.start()


def options_of_a_certificate(directory: Path) -> tuple[str, ...]:
    """Make a CA and a certificate for every process; return the options that name their files."""
    certificates = CertificateDirectory(directory)
    now = datetime.now(UTC)
    certificates.create("road", now=now, days=2)
    node = Identity("node", (HOST,), "spiffe://road/node", accepts=True)
    certificates.issue(node, now=now, days=1)
    trusted, own = certificates.authorities, certificates.file_of("node")
    return ("--tls-ca", str(trusted), "--tls-cert", str(own))


@asynccontextmanager
async def driven(road: Road) -> AsyncIterator[Road]:
    """Start the road's cluster, and end all of its processes with the block."""
    try:
        await road.start()
        yield road
    finally:
        await asyncio.shield(road.close())
