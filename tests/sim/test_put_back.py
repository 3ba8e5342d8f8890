"""A coordinator's file is put back by hand under living clients, after partitions have moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.errors import PartitionNotReadyError
from waltz.host import Host
from waltz.sim.faults.kinds import PutBack
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites, until_stopped
from waltz.store import partition_coordination_shell
from waltz.types import ClientId, Generation, PartitionId

SHAPE = ClusterShape(
    partition_count=2,
    storage_count=3,
    server_count=2,
    segment_bytes_threshold=20_000,
    spare_count=0,
)
PATHS = ClusterPaths()
SETTLING_SECONDS = 60.0


class Marks(WaltzClientCallbacks):
    """An application that keeps nothing but its marks."""

    def __init__(self) -> None:
        self._marks: dict[PartitionId, int] = {}

    def get_client_high_water_mark(self, partition_id: PartitionId) -> int:
        return self._marks.get(partition_id, -1)

    def apply_transaction(self, transaction: Transaction) -> None:
        self._marks[transaction.partition_id] = transaction.transaction_id

    def uncaught_exception(self, *problem: Any) -> None:
        raise AssertionError(problem)


class Writers:
    """Clients that write to every partition, each for as long as it lives."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._clients: dict[str, AsyncWaltzClient] = {}
        self.written: dict[str, int] = {}

    def start(self, name: str) -> None:
        async def write(host: Host) -> None:
            async with AsyncWaltzClient(host, Marks()) as client:
                self._clients[name] = client
                while True:
                    with contextlib.suppress(PartitionNotReadyError):
                        for partition_id in SHAPE.partition_ids:
                            await client.append(partition_id, name.encode())
                        self.written[name] = self.written.get(name, 0) + 1
                    await asyncio.sleep(0.5)

        self._sites.add(name, lambda host: until_stopped(write(host)), SimulatedDisk())

    def client_id(self, name: str) -> ClientId:
        return self._clients[name].engine.identity.client_id


def generations(sites: Sites) -> list[Generation]:
    data = sites.coordinator.tree.read(PATHS.server_descriptors).data or b""
    servers = PartitionAssignment.decode(data).servers
    return [generation for held in servers.values() for generation in held.values()]


def put_back_under(writers: Callable[[Sites], Writers]) -> tuple[Sites, Writers, dict[str, int]]:
    """Return what became of two clients, one of which is younger than the copy, and of a third one
    that was started afterwards; and what the two had written when the file was put back."""
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1))
    found = writers(sites)
    written: dict[str, int] = {}

    async def scene() -> None:
        await cluster.start()
        while cluster.members() != cluster.assigned():
            await asyncio.sleep(0.1)
        found.start("client-old")
        await asyncio.sleep(5.0)
        striking = asyncio.ensure_future(
            Strikes(sites).strike(
                PutBack(
                    progress=0.0,
                    names=tuple(SHAPE.servers),
                    seconds=20.0,
                    moves=("server-0", "server-1") * 3,
                    pause_seconds=0.1,
                )
            )
        )
        await asyncio.sleep(15.0)
        found.start("client-young")
        await striking
        written.update(found.written)
        await asyncio.sleep(SETTLING_SECONDS)
        found.start("client-new")
        await asyncio.sleep(SETTLING_SECONDS)

    try:
        loop.run_until_complete(scene())
        assert sites.effects["numbers of the coordinator that were put back"] == 1
    finally:
        loop.shut_down()
    return sites, found, written


def test_clients_that_live_on_write_again_and_no_client_id_is_given_twice() -> None:
    sites, writers, before = put_back_under(Writers)
    assert before.keys() == {"client-old", "client-young"}
    for name in before:
        assert writers.written[name] > before[name]
    assert min(generations(sites)) > 1_000
    ids = [writers.client_id(name) for name in ("client-old", "client-young", "client-new")]
    assert len({*ids}) == 3
    assert min(ids) > 1_000_000


def test_generations_that_are_believed_leave_clients_without_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted mistake: the servers know that the coordinator was set back, and raise nothing."""
    monkeypatch.setattr(partition_coordination_shell, "shows_set_back", lambda *_: False)
    sites, writers, before = put_back_under(Writers)
    assert max(generations(sites)) < 100
    assert {name: writers.written[name] for name in before} == before
