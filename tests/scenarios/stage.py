"""The stage on which a story is played: a simulated cluster, its clients, and what happens there.

Owns the meaning of every event of `language.py`, one method each, which returns once it has
happened. What can be said about how things are is in `states.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from tests.scenarios.language import NONE, Locks, Range
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.placement_shell import change_placement
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    remove_storage_node,
    replace_replicas,
    unassign_replicas,
)
from waltz.errors import PostponedError
from waltz.host import Host
from waltz.reader.reader_shell import AsyncLogReader
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.clients import fed_in
from waltz.sim.faults.disk_strikes import blank_disk
from waltz.sim.judges.checkers import Log
from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.sim.judges.overseer import Overseer
from waltz.sim.judges.payload import EntryKind
from waltz.sim.judges.replicas import MarkWatch
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import PROCESS, SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import ADMIN_PORT, PORT, SimulatedCluster, replica_id_of
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.types import Address, PartitionId, SessionId, TransactionId

PATIENCE_SECONDS: Final = 3600.0
"""How long the clients of a story wait for a server: what is undecided is to stay so."""

STOP_SECONDS_MAX: Final = 60.0
"""Virtual time in which a machine that is told to stop has stopped."""

READ_SECONDS_MAX: Final = 5.0
"""Virtual time in which a look at the log is answered, or tells nothing."""

HOLD_SECONDS: Final = 0.1
"""Between two questions whether an application that stopped applying applies again."""


class Follower(Application):
    """An application that can stop applying, and that fails where the story says so."""

    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name, stage.history, stage.trace, stage.loop.time)
        self.is_holding = False
        self.failures_left: dict[tuple[PartitionId, TransactionId], int] = {}
        self.failures: dict[tuple[PartitionId, TransactionId], int] = {}

    def apply_transaction(self, transaction: Transaction) -> None:
        if self.is_holding:
            raise PostponedError("the story says so", HOLD_SECONDS)
        key = (transaction.partition_id, transaction.transaction_id)
        if self.failures_left.get(key):
            self.failures_left[key] -= 1
            raise ValueError("the story says so")
        super().apply_transaction(transaction)

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        key = (partition_id, transaction_id)
        self.failures[key] = self.failures.get(key, 0) + 1
        if not isinstance(error, ValueError):
            super().uncaught_exception(partition_id, transaction_id, error)


@dataclass(slots=True, eq=False)
class Client:
    """One client, through all lives of its process; its application outlives them."""

    application: Follower
    present: AsyncWaltzClient | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    named: dict[str, Intent] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)

    async def main(self, host: Host) -> None:
        options = ClientOptions(mount_seconds_max=PATIENCE_SECONDS)
        process = PROCESS.get()
        try:
            async with AsyncWaltzClient(host, self.application, options) as client:
                self.present = client
                self.began.set()
                await process.stop_wanted.wait()
        finally:
            self.began.clear()
            if not process.dead:  # it has told all that left it
                self.application.history.abandon(self.application.name, ContextVerdict.UNWRITTEN)

    def die(self) -> None:
        self.began.clear()
        self.application.history.abandon(self.application.name, ContextVerdict.LOST)


class Stage:
    """One run of a story. Its verbs are the methods below `# Clients`."""

    def __init__(self, name: str, seed: int, cluster: Sequence[int]) -> None:
        """`cluster`: how many storages, servers and partitions."""
        storages, servers, partitions = cluster[:3]
        source = f"{name}/{seed}"
        self.loop = SimulatedLoop(source, virtual_seconds_max=100_000.0)
        self.trace = RunTrace()
        self.history = History()
        self.sites = Sites(self.loop, source, self.trace, Overseer().look)
        shape = ClusterShape(
            partition_count=partitions,
            storage_count=storages,
            server_count=servers,
            segment_bytes_threshold=1_000_000_000,
        )
        self.cluster = SimulatedCluster(
            self.sites, shape, UUID(int=Random(source).getrandbits(128), version=4)
        )
        self.partition_ids = shape.partition_ids
        self.marks = MarkWatch()
        self.harmed: dict[str, None] = {}
        """The storages whose disk was replaced."""
        self.clients: dict[str, Client] = {}
        self._keys: dict[str, int] = {}
        """The number of each lock that the story names."""
        self._copies: dict[str, SimulatedDisk] = {}
        self.noted: dict[PartitionId, SessionId] = {}
        self._guests_count = 0

    # What the runner needs besides

    def look_at_disks(self) -> None:
        self.marks.look(self.cluster.replicas(durable=True), self.harmed)

    def end(self) -> None:
        """Whatever a client has not been told by now, it is not told in this story."""
        for name in self.clients:
            self.history.abandon(name, ContextVerdict.LOST)

    @property
    def errors(self) -> list[str]:
        return [error for client in self.clients.values() for error in client.application.errors]

    async def read_log(self) -> Log:
        """What is in all partitions, read as anybody reads. Raises WaltzError."""
        return {number: await self.read(number) for number in self.partition_ids}

    # Clients

    async def start_client(
        self, partition_id: PartitionId, name: str, applied: Range = NONE
    ) -> None:
        assert name not in self.clients, f"{name} has started; it can start again"
        client = self.clients[name] = Client(Follower(name, self))
        client.application.marks[partition_id] = TransactionId(applied.last)
        self.sites.add(name, client.main, SimulatedDisk(), may_end=True, on_death=client.die)
        await client.began.wait()

    start_client_ahead = start_client

    async def close_client(self, partition_id: PartitionId, name: str) -> None:
        await self.stop(partition_id, name)

    async def write_many(self, partition_id: PartitionId, name: str, count: int) -> None:
        intents = [self._submit(partition_id, name) for _ in range(count)]
        await self._committed(intents)

    async def write(self, partition_id: PartitionId, name: str, what: str, locks: Locks) -> None:
        await self._committed([self._submit(partition_id, name, what, locks)])

    async def submit_many(self, partition_id: PartitionId, name: str, count: int) -> None:
        for _ in range(count):
            self._submit(partition_id, name)

    async def submit(self, partition_id: PartitionId, name: str, what: str, locks: Locks) -> None:
        self._submit(partition_id, name, what, locks)

    async def submit_within(
        self, partition_id: PartitionId, name: str, what: str, seconds: int
    ) -> None:
        self._submit(partition_id, name, what, timeout_seconds=float(seconds))

    async def hold(self, partition_id: PartitionId, name: str) -> None:
        self.clients[name].application.is_holding = True

    async def release(self, partition_id: PartitionId, name: str) -> None:
        self.clients[name].application.is_holding = False

    async def poison(
        self, partition_id: PartitionId, name: str, times: int, transaction_id: int
    ) -> None:
        application = self.clients[name].application
        application.failures_left[partition_id, TransactionId(transaction_id)] = times

    def _submit(
        self,
        partition_id: PartitionId,
        name: str,
        what: str = "",
        locks: Locks | None = None,
        timeout_seconds: float | None = None,
    ) -> Intent:
        client, locks = self.clients[name], locks or Locks()
        draft = Draft(
            EntryKind.NOTE, self._numbers(locks.write), self._numbers(locks.read),
            self._numbers(locks.append),
        )  # fmt: skip
        intent = Intent(
            client.application,
            partition_id,
            lambda application, partition_id: draft,
            header=0,
            padding=what.encode(),
            timeout_seconds=timeout_seconds,
        )
        assert client.present is not None
        assert client.began.is_set(), f"{name} has not started"
        client.intents.append(intent)
        if what:
            client.named[what] = intent
        self.loop.spawn(self.sites.site(name).process, submit(client.present, intent))
        return intent

    async def _committed(self, intents: Sequence[Intent]) -> None:
        for intent in intents:
            await intent.ended.wait()
            ending = intent.submission.endings[0]
            assert ending.verdict is ContextVerdict.COMMITTED, f"not committed: {ending}"

    def _numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._keys.setdefault(name, len(self._keys)) for name in names)

    # Machines

    async def kill(self, partition_id: PartitionId, name: str) -> None:
        site = self.sites.site(name)
        site.is_struck = True
        if not site.process.dead:
            self.sites.kill(site)

    async def lose_power(self, partition_id: PartitionId, name: str) -> None:
        await self.kill(partition_id, name)
        self.sites.lose_power(self.sites.site(name))

    async def start_again(self, partition_id: PartitionId, name: str) -> None:
        site = self.sites.site(name)
        assert site.process.dead, f"{name} is running"
        site.disk.release_locks()
        site.is_struck = False
        self.sites.boot(site)
        if name in self.clients:
            await self.clients[name].began.wait()

    async def stop(self, partition_id: PartitionId, name: str) -> None:
        site = self.sites.site(name)
        site.is_struck = True
        site.process.stop_wanted.set()
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await site.died.wait()

    async def freeze(self, partition_id: PartitionId, name: str) -> None:
        process = self.sites.site(name).process
        self.loop.pause(process)
        self.sites.coordinator.freeze(process)

    async def thaw(self, partition_id: PartitionId, name: str) -> None:
        process = self.sites.site(name).process
        self.loop.resume(process)
        self.sites.coordinator.thaw(process)

    async def join(self, partition_id: PartitionId, name: str) -> None:
        self.cluster.add_server(name)

    async def keep_apart(self, partition_id: PartitionId, one: str, other: str) -> None:
        self.sites.network.block([(one, other), (other, one)])

    async def bring_together(self, partition_id: PartitionId, one: str, other: str) -> None:
        self.sites.network.unblock([(one, other), (other, one)])

    async def silence(self, partition_id: PartitionId, sender: str, receiver: str) -> None:
        self.sites.network.block([(sender, receiver)])

    async def end_silence(self, partition_id: PartitionId, sender: str, receiver: str) -> None:
        self.sites.network.unblock([(sender, receiver)])

    async def take_coordinator_away(self, partition_id: PartitionId) -> None:
        self.sites.coordinator.begin_outage()

    async def bring_coordinator_back(self, partition_id: PartitionId) -> None:
        self.sites.coordinator.end_outage()

    async def pass_time(self, partition_id: PartitionId, seconds: int) -> None:
        await asyncio.sleep(seconds)

    # Disks

    async def copy_disk(self, partition_id: PartitionId, name: str) -> None:
        self._copies[name] = self.sites.disk_after_power_cut(self.sites.site(name))

    async def restore_disk(self, partition_id: PartitionId, name: str) -> None:
        await self._replace_disk(partition_id, name, self._copies.pop(name))

    async def blank_disk(self, partition_id: PartitionId, name: str) -> None:
        await self._replace_disk(partition_id, name, blank_disk(self.sites.disk(name)))

    async def _replace_disk(
        self, partition_id: PartitionId, name: str, disk: SimulatedDisk
    ) -> None:
        self.sites.site(name).disk = disk
        self.harmed[name] = None
        await self.start_again(partition_id, name)

    # Storage nodes of the cluster

    async def add_storage(self, partition_id: PartitionId, name: str) -> None:
        self.cluster.add_storage(name)
        await self.add_storage_again(partition_id, name)

    async def add_storage_again(self, partition_id: PartitionId, name: str) -> None:
        def added(placement: StoragePlacement) -> StoragePlacement:
            group = max(placement.groups.values(), default=0) + 1
            placement = self._with_node(placement, name, group)
            return assign_replicas(placement, replica_id_of(name), self.partition_ids)

        await self._change(added)

    async def remove_storage(self, partition_id: PartitionId, name: str) -> None:
        def removed(placement: StoragePlacement) -> StoragePlacement:
            node = replica_id_of(name)
            held = placement.partitions.get(node, ())
            placement = unassign_replicas(placement, node, held, shrinks_group=True)
            return remove_storage_node(placement, node)

        await self._change(removed)

    async def replace_storage(self, partition_id: PartitionId, name: str, leaving: str) -> None:
        self.cluster.add_storage(name)
        node, old = replica_id_of(name), replica_id_of(leaving)
        await self._change(
            lambda placement: self._with_node(placement, name, placement.groups[old])
        )
        await self._change(partial(replace_replicas, leaving=old, joining=node))
        await self._change(partial(remove_storage_node, node=old))

    def _with_node(self, placement: StoragePlacement, name: str, group: int) -> StoragePlacement:
        return add_storage_node(placement, Address(name, PORT), group=group, admin_port=ADMIN_PORT)

    async def _change(self, change: Callable[[StoragePlacement], StoragePlacement]) -> None:
        async def main(host: Host) -> None:
            await change_placement(host.coordinator, change)
            await host.coordinator.close()

        self._guests_count += 1
        await self.sites.run(f"tool-{self._guests_count}", main)

    # Sessions

    async def note_session(self, partition_id: PartitionId) -> None:
        self.noted[partition_id] = self.metadata(partition_id).session_id

    # What can be seen

    async def read(self, partition_id: PartitionId) -> list[FedRecord]:
        async def main(host: Host) -> list[FedRecord]:
            try:
                async with AsyncLogReader(host, timeout_seconds=READ_SECONDS_MAX) as reader:
                    end = await reader.high_water_mark(partition_id) + 1
                    runs = [columns async for columns in reader.read(partition_id, 0, end)]
            finally:
                await host.coordinator.close()
            return [fed for columns in runs for fed in fed_in(columns)]

        self._guests_count += 1
        return await self.sites.run(f"reader-{self._guests_count}", main)

    def metadata(self, partition_id: PartitionId) -> PartitionMetadata:
        node = self.sites.coordinator.tree.read(ClusterPaths().partition_metadata(partition_id))
        return PartitionMetadata.decode(node.data or b"", partition_id)
