"""The stage on which a story is played: a simulated cluster, its clients, and what each verb does.

Owns the meaning of every phrase of `language.py`, one method each. An event returns once it has
happened. A state returns None if it is so, and else what is instead, in words. Knows the product by
what people have of it: clients, readers, disks, and what the coordinator holds.
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
from waltz.client.options import ClientOptions
from waltz.client.reader.shell import AsyncLogReader
from waltz.client.shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.placement.shell import change_placement
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    exchange_replicas,
    remove_storage_node,
    unassign_replicas,
)
from waltz.errors import PostponedError
from waltz.host import Host
from waltz.sim.application import Application, Draft, Intent
from waltz.sim.checkers import Log
from waltz.sim.clients import fed_in, submit
from waltz.sim.cluster import ADMIN_PORT, PORT, SimulatedCluster
from waltz.sim.disk import SimulatedDisk
from waltz.sim.disk_strikes import blank_disk
from waltz.sim.history import Fed, History, Submission, Verdict
from waltz.sim.loop import PROCESS, SimulatedLoop
from waltz.sim.overseer import Overseer
from waltz.sim.payload import Kind
from waltz.sim.replicas import MarkWatch, Replica
from waltz.sim.scenario import ClusterShape
from waltz.sim.sites import Sites
from waltz.sim.trace import Trace
from waltz.types import Address, PartitionId, ReplicaId, SessionId, TransactionId

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
                self.application.history.abandon(self.application.name, Verdict.UNWRITTEN)

    def die(self) -> None:
        self.began.clear()
        self.application.history.abandon(self.application.name, Verdict.LOST)


class Stage:
    """One run of a story. Its verbs are the methods below `# Clients`."""

    def __init__(self, name: str, seed: int, cluster: Sequence[int]) -> None:
        """`cluster`: how many storages, servers and partitions."""
        storages, servers, partitions = cluster[:3]
        source = f"{name}/{seed}"
        self.loop = SimulatedLoop(source, virtual_seconds_max=100_000.0)
        self.trace = Trace()
        self.history = History()
        self.sites = Sites(self.loop, source, self.trace, Overseer().look)
        shape = ClusterShape(
            partition_count=partitions,
            storage_count=storages,
            server_count=servers,
            segment_bytes_threshold=1_000_000_000,
            syncs_late=False,
        )
        self.cluster = SimulatedCluster(
            self.sites, shape, UUID(int=Random(source).getrandbits(128), version=4)
        )
        self.partition_ids = shape.partition_ids
        self.marks = MarkWatch()
        self.harmed: dict[str, None] = {}
        """The storages whose disk was exchanged."""
        self._clients: dict[str, Client] = {}
        self._keys: dict[str, int] = {}
        """The number of each lock that the story names."""
        self._copies: dict[str, SimulatedDisk] = {}
        self._noted: dict[PartitionId, SessionId] = {}
        self._guests_count = 0

    # What the runner needs besides

    def look_at_disks(self) -> None:
        self.marks.look(self.cluster.replicas(durable=True), self.harmed)

    def end(self) -> None:
        """Whatever a client has not been told by now, it is not told in this story."""
        for name in self._clients:
            self.history.abandon(name, Verdict.LOST)

    @property
    def errors(self) -> list[str]:
        return [error for client in self._clients.values() for error in client.application.errors]

    async def read_log(self) -> Log:
        """What is in all partitions, read as anybody reads. Raises WaltzError."""
        return {number: await self._read(number) for number in self.partition_ids}

    # Clients

    async def start_client(
        self, partition_id: PartitionId, name: str, applied: Range = NONE
    ) -> None:
        assert name not in self._clients, f"{name} has started; it can start again"
        client = self._clients[name] = Client(Follower(name, self))
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
        self._clients[name].application.is_holding = True

    async def release(self, partition_id: PartitionId, name: str) -> None:
        self._clients[name].application.is_holding = False

    async def poison(
        self, partition_id: PartitionId, name: str, times: int, transaction_id: int
    ) -> None:
        application = self._clients[name].application
        application.failures_left[partition_id, TransactionId(transaction_id)] = times

    def _submit(
        self,
        partition_id: PartitionId,
        name: str,
        what: str = "",
        locks: Locks | None = None,
        timeout_seconds: float | None = None,
    ) -> Intent:
        client, locks = self._clients[name], locks or Locks()
        draft = Draft(
            Kind.NOTE, self._numbers(locks.write), self._numbers(locks.read),
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
            assert ending.verdict is Verdict.COMMITTED, f"not committed: {ending}"

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
        if name in self._clients:
            await self._clients[name].began.wait()

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
        await self._exchange_disk(partition_id, name, self._copies.pop(name))

    async def blank_disk(self, partition_id: PartitionId, name: str) -> None:
        await self._exchange_disk(partition_id, name, blank_disk(self.sites.disk(name)))

    async def _exchange_disk(
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
            return assign_replicas(placement, _replica_id(name), self.partition_ids)

        await self._change(added)

    async def remove_storage(self, partition_id: PartitionId, name: str) -> None:
        def removed(placement: StoragePlacement) -> StoragePlacement:
            node = _replica_id(name)
            held = placement.partitions.get(node, ())
            placement = unassign_replicas(placement, node, held, shrinks_group=True)
            return remove_storage_node(placement, node)

        await self._change(removed)

    async def exchange_storage(self, partition_id: PartitionId, name: str, leaving: str) -> None:
        self.cluster.add_storage(name)
        node, old = _replica_id(name), _replica_id(leaving)
        await self._change(
            lambda placement: self._with_node(placement, name, placement.groups[old])
        )
        await self._change(partial(exchange_replicas, leaving=old, joining=node))
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
        self._noted[partition_id] = self._metadata(partition_id).session_id

    # States of storage

    async def log_is(self, partition_id: PartitionId, *expected: Range) -> str | None:
        records = await self._read(partition_id)
        found = Range(0, len(records) - 1)
        return None if found in expected else f"it is {found}"

    log_is_one_of = log_is

    async def holds(self, partition_id: PartitionId, name: str, expected: Range) -> str | None:
        replica = self._replica(name)
        found = Range(0, len(replica.records.get(partition_id, ())) - 1)
        return None if found == expected else f"it holds {found}"

    async def low_water_marks_at_end(self, partition_id: PartitionId) -> str | None:
        for name in self._assigned(partition_id):
            replica = self._replica(name)
            end = len(replica.records.get(partition_id, ())) - 1
            marks = replica.marks.get(partition_id)
            if marks is None or marks.low_water_mark != end:
                return f"{name} holds 0 to {end} and has marks {marks}"
        return None

    async def replicas_equal(self, partition_id: PartitionId) -> str | None:
        log = await self._read(partition_id)
        for name in self._assigned(partition_id):
            if (found := self._replica(name).records.get(partition_id, [])) != log:
                return f"{name} holds {len(found)} transactions, the log has {len(log)}"
        return None

    def _replica(self, name: str) -> Replica:
        return self.cluster.replicas(durable=True)[name]

    async def _read(self, partition_id: PartitionId) -> list[Fed]:
        async def main(host: Host) -> list[Fed]:
            try:
                async with AsyncLogReader(host, timeout_seconds=READ_SECONDS_MAX) as reader:
                    end = await reader.high_water_mark(partition_id) + 1
                    runs = [columns async for columns in reader.read(partition_id, 0, end)]
            finally:
                await host.coordinator.close()
            return [fed for columns in runs for fed in fed_in(columns)]

        self._guests_count += 1
        return await self.sites.run(f"reader-{self._guests_count}", main)

    # States of metadata

    async def replicas_are(self, partition_id: PartitionId, expected: Sequence[str]) -> str | None:
        found = sorted(map(_machine, self._metadata(partition_id).replica_states))
        return None if found == sorted(expected) else f"they are {', '.join(found)}"

    async def takes_part(self, partition_id: PartitionId, name: str) -> str | None:
        metadata = self._metadata(partition_id)
        found = metadata.replica_states.get(_replica_id(name))
        return None if found == ReplicaState(metadata.session_id, None) else f"it is {found}"

    async def is_closed_at(self, partition_id: PartitionId, name: str, mark: int) -> str | None:
        found = self._metadata(partition_id).replica_states.get(_replica_id(name))
        is_so = found is not None and found.closing_high_water_mark == mark
        return None if is_so else f"it is {found}"

    async def session_is(self, partition_id: PartitionId, expected: int) -> str | None:
        found = self._metadata(partition_id).session_id
        return None if found == expected else f"it is {found}"

    async def session_is_noted(self, partition_id: PartitionId) -> str | None:
        found, noted = self._metadata(partition_id).session_id, self._noted[partition_id]
        return None if found == noted else f"{noted} was noted, it is {found}"

    async def session_is_later(self, partition_id: PartitionId) -> str | None:
        found, noted = self._metadata(partition_id).session_id, self._noted[partition_id]
        return None if found > noted else f"{noted} was noted, it is {found}"

    async def generation_is(self, partition_id: PartitionId, expected: int) -> str | None:
        found = self._metadata(partition_id).generation
        return None if found == expected else f"it is {found}"

    async def serves(self, partition_id: PartitionId, name: str, count: int) -> str | None:
        tree, path = self.sites.coordinator.tree, ClusterPaths().server_descriptors
        assignment = PartitionAssignment.decode(tree.read(path).data or b"")
        found = 0
        for child in tree.children(path):
            descriptor = ServerDescriptor.decode(tree.read(f"{path}/{child}").data or b"")
            if descriptor.address.host == name:
                found = len(assignment.servers.get(descriptor.server_id, {}))
        return None if found == count else f"it serves {found}"

    def _metadata(self, partition_id: PartitionId) -> PartitionMetadata:
        node = self.sites.coordinator.tree.read(ClusterPaths().partition_metadata(partition_id))
        return PartitionMetadata.decode(node.data or b"", partition_id)

    def _assigned(self, partition_id: PartitionId) -> list[str]:
        node = self.sites.coordinator.tree.read(ClusterPaths().replica_assignments)
        assignments = ReplicaAssignments.decode(node.data or b"")
        return [_machine(replica_id) for replica_id in assignments.replicas(partition_id)]

    # States of clients

    async def has_applied(
        self, partition_id: PartitionId, name: str, expected: Range
    ) -> str | None:
        feed = self.history.feed(name, partition_id)
        found = [fed.transaction_id for fed in feed]
        is_so = found == list(range(expected.first, expected.last + 1))
        return None if is_so else f"it has applied {found}"

    async def all_committed(self, partition_id: PartitionId, name: str) -> str | None:
        return _unless(self._of(name, partition_id), Verdict.COMMITTED)

    async def some_undecided(self, partition_id: PartitionId, count: int, name: str) -> str | None:
        found = [each for each in self._of(name, partition_id) if not each.endings]
        return None if len(found) == count else f"{len(found)} are"

    async def is_committed(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        return _unless([self._named(name, what).submission], Verdict.COMMITTED)

    async def is_expired(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        return _unless([self._named(name, what).submission], Verdict.EXPIRED)

    async def is_undecided(self, partition_id: PartitionId, what: str, name: str) -> str | None:
        endings = self._named(name, what).submission.endings
        return f"it ended with {endings}" if endings else None

    async def is_transaction(
        self, partition_id: PartitionId, what: str, name: str, transaction_id: int
    ) -> str | None:
        records = await self._read(partition_id)
        written = self._named(name, what).submission.written
        found = [fed.transaction_id for fed in records if (fed.header, fed.data) in written]
        return None if found == [transaction_id] else f"it is at {found}"

    async def was_told(
        self, partition_id: PartitionId, what: str, name: str, text: str
    ) -> str | None:
        endings = self._named(name, what).submission.endings
        is_so = len(endings) == 1 and text in endings[0].text
        return None if is_so else f"it was told {endings}"

    async def was_refused(
        self, partition_id: PartitionId, what: str, name: str, transaction_id: int
    ) -> str | None:
        found = [each.estimate for each in self._named(name, what).submission.refusals]
        return None if found == [transaction_id] else f"it was refused for {found}"

    async def was_never_refused(
        self, partition_id: PartitionId, what: str, name: str
    ) -> str | None:
        found = self._named(name, what).submission.refusals
        return f"it was refused: {found}" if found else None

    async def was_executed(
        self, partition_id: PartitionId, what: str, name: str, times: int
    ) -> str | None:
        found = len(self._named(name, what).submission.written)
        return None if found == times else f"it was executed {found} times"

    async def has_failed_to_apply(
        self, partition_id: PartitionId, name: str, times: int, transaction_id: int
    ) -> str | None:
        failures = self._clients[name].application.failures
        found = failures.get((partition_id, TransactionId(transaction_id)), 0)
        return None if found == times else f"it has failed {found} times"

    def _named(self, name: str, what: str) -> Intent:
        return self._clients[name].named[what]

    def _of(self, name: str, partition_id: PartitionId) -> list[Submission]:
        found = [intent.submission for intent in self._clients[name].intents]
        return [each for each in found if each.partition_id == partition_id]


def _unless(submissions: Sequence[Submission], verdict: Verdict) -> str | None:
    """What is instead of all having ended so, once."""
    others = [
        str([ending.verdict.name for ending in each.endings] or "undecided")
        for each in submissions
        if [ending.verdict for ending in each.endings] != [verdict]
    ]
    return ", ".join(others) or None


def _replica_id(name: str) -> ReplicaId:
    return ReplicaId(str(Address(name, PORT)))


def _machine(replica_id: ReplicaId) -> str:
    return Address.parse(replica_id).host
