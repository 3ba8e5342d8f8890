"""A world for session keepers: replicas, coordinator and network as plain objects, run by a seed.

One partition. Any number of servers, each a `SessionKeeper`, of which several may believe to own
it; one that gets the partition back is a new one here. The driver picks one possible thing to
happen at a time. What a server must never do is checked as it happens; `heal` then demands
progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.store.fake_replica import FakeReplica, RefusedError
from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata
from waltz.limits import CHECKPOINT_TRANSACTIONS
from waltz.majority import majority
from waltz.record import NewRecord, RecordBatch
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreEvent, StoreOpened
from waltz.store.messages import fence_in
from waltz.store.recovery import HighWaterMarkResolved
from waltz.store.requests import (
    AppendToReplica,
    ConnectReplica,
    DropReplica,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadMetadata,
    ReplicaAnswer,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    ReplicaRequest,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    WriteMetadata,
)
from waltz.store.session_keeper import (
    AppendsSubmitted,
    CloseRequested,
    KeeperEffect,
    KeeperEvent,
    LoseOwnership,
    ReplicasAssigned,
    SessionKeeper,
)
from waltz.types import Generation, ReplicaId, SessionId, TransactionId


@dataclass
class Wire:
    """One connection: requests and answers in order."""

    replica: FakeReplica
    link: ReplicaLink
    requests: list[ReplicaRequest] = field(default_factory=list)
    unsynced: list[tuple[ReplicaRequest, ReplicaAnswer]] = field(default_factory=list)
    answers: list[KeeperEvent] = field(default_factory=list)
    timed_out: list[ReplicaRequest] = field(default_factory=list)
    """Nobody waits for their answers any more."""
    is_cut: bool = False
    """The server has given it up; requests already sent may still arrive."""

    def has_timed_out(self, request: ReplicaRequest) -> bool:
        return any(request is each for each in self.timed_out)

    def answer(self, request: ReplicaRequest, answer: RequestAnswered | RequestFailed) -> None:
        if not self.has_timed_out(request):
            self.answers.append(answer)


class Server:
    def __init__(
        self, world: World, name: str, generation: Generation, checkpoint_transactions: int
    ) -> None:
        self.world = world
        self.name = name
        self.generation = generation
        self.keeper = SessionKeeper(generation, checkpoint_transactions=checkpoint_transactions)
        self.connecting: list[ReplicaLink] = []
        self.wires: dict[ReplicaLink, Wire] = {}
        self.later: list[SendRequest] = []
        self.metadata_requests: list[ReadMetadata | WriteMetadata] = []
        self.submitted: list[bytes] = []
        """Undecided appends, oldest first."""
        self.assignment_seen: tuple[ReplicaId, ...] | None = None
        self.is_open = False
        self.is_fenced = False
        self.session_id = SessionId(-1)

    def step(self, *events: KeeperEvent) -> None:
        effects = self.keeper.step(events, self.world.now)
        self.keeper.check_invariants()
        deadline = self.keeper.deadline
        assert deadline is None or deadline > self.world.now, "a deadline that never ends"
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: KeeperEffect) -> None:
        assert not self.is_fenced, "a server goes on after it has lost the partition"
        self.world.trace.append((self.name, effect))
        match effect:
            case ConnectReplica(link):
                self.connecting.append(link)
            case DropReplica(link):
                self.drop(link)
            case SendRequest(link, request, delay_seconds):
                if delay_seconds:
                    self.later.append(effect)
                elif wire := self.wires.get(link):
                    wire.requests.append(request)
            case ReadMetadata() | WriteMetadata():
                self.metadata_requests.append(effect)
            case StoreOpened(session_id, mark):
                assert not self.is_open
                self.is_open = True
                self.session_id = session_id
                self.world.opened(self, session_id, mark)
            case Committed(batch):
                self.world.committed_by(self, batch)
            case AppendsFailed(count):
                self.world.failed_by(self, count)
            case LoseOwnership():
                assert self.world.metadata.generation > self.generation
                assert not self.is_open
                self.is_fenced = True
            case StoreClosed():
                assert self.is_open
                self.is_open = False
            case HighWaterMarkResolved():
                pass

    def drop(self, link: ReplicaLink) -> None:
        if link in self.connecting:
            self.connecting.remove(link)
        if wire := self.wires.pop(link, None):
            wire.is_cut = True

    def submit(self, record: NewRecord) -> None:
        self.submitted.append(record.request_id)
        self.world.submitters[record.request_id] = self.generation
        self.step(AppendsSubmitted((record,)))


class World:
    def __init__(self, seed: int, replica_count: int = 3) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.replicas = {
            replica_id: FakeReplica(replica_id)
            for replica_id in (ReplicaId(f"{name}:1") for name in "abcdefg"[:replica_count])
        }
        self.assigned = tuple(self.replicas)
        self.metadata = NEW_PARTITION
        self.version = 0
        self.servers: list[Server] = []
        self.wires: list[Wire] = []
        self.trace: list[object] = []
        self.generation = 0
        self.request_count = 0
        self.log: dict[int, RecordBatch] = {}
        """What was reported committed, by transaction ID."""
        self.marks: dict[SessionId, TransactionId] = {}
        self.failed: set[bytes] = set()
        self.submitters: dict[bytes, Generation] = {}
        """The generation under which each append was submitted."""
        self.blank_budget = 0
        self.changes_many = False
        self.damage_budget = 0
        """How many times something durable is damaged: each record on one replica alone."""
        self.harmed: dict[int, FakeReplica] = {}
        self.loss_budget = 0
        """How many times a record is damaged on all replicas at once."""
        self.lost: set[int] = set()
        """Those records."""

    # What servers say

    def opened(self, server: Server, session_id: SessionId, mark: TransactionId) -> None:
        assert session_id not in self.marks
        self.marks[session_id] = mark
        holders = [self.replicas[link.replica_id] for link in server.keeper.holders(mark)]
        if session_id == max(self.marks):
            assert mark >= max(self.log, default=-1), "a committed transaction is above the mark"
        if session_id == max(self.marks) and holders:
            for transaction_id in range(mark + 1):
                found = holders[0].log[transaction_id]
                assert self.log.setdefault(transaction_id, found) == found, "lost or replaced"
                assert found.request_ids().tobytes() not in self.failed, "a failed append is back"

    def committed_by(self, server: Server, batch: RecordBatch) -> None:
        for index in range(len(batch)):
            transaction_id = batch.first_transaction_id + index
            record = batch.slice(TransactionId(transaction_id), 1)
            request_id = record.request_ids().tobytes()
            assert server.submitted.pop(0) == request_id, "outcome out of order"
            assert request_id not in self.failed
            assert self.log.setdefault(transaction_id, record) == record, "forked"
            for session_id, mark in self.marks.items():
                if session_id > server.session_id and mark < transaction_id:
                    raise AssertionError("committed after a later session recovered without it")

    def failed_by(self, server: Server, count: int) -> None:
        committed = {record.request_ids().tobytes() for record in self.log.values()}
        for request_id in server.submitted[:count]:
            assert request_id not in committed, "reported failed, but committed"
            self.failed.add(request_id)
        assert len(server.submitted) >= count
        del server.submitted[:count]

    def check_log(self) -> None:
        """Nothing was written after what a later owner wrote: its locks were checked before."""
        newest = Generation(0)
        for _, record in sorted(self.log.items()):
            generation = self.submitters[record.request_ids().tobytes()]
            assert generation >= newest, "written after a later owner's records"
            newest = generation

    # What may happen

    def add_server(self, checkpoint_transactions: int = CHECKPOINT_TRANSACTIONS) -> Server:
        self.generation += 1
        name, generation = f"server {self.generation}", Generation(self.generation)
        server = Server(self, name, generation, checkpoint_transactions)
        self.servers.append(server)
        server.step()
        return server

    def new_record(self) -> NewRecord:
        self.request_count += 1
        return NewRecord(self.request_count.to_bytes(16, "big"), 0, b"", 0)

    def wire_up(self, server: Server, link: ReplicaLink) -> None:
        replica = self.replicas[link.replica_id]
        if replica.is_up:
            server.connecting.remove(link)
            wire = Wire(replica, link)
            self.wires.append(wire)
            server.wires[link] = wire
            server.step(ReplicaConnected(link, replica.is_repairable, replica.is_tolerant))

    def deliver_request(self, wire: Wire) -> None:
        request = wire.requests.pop(0)
        if not wire.replica.is_up:
            return
        wire.replica.announce(wire.link.session_id)
        try:
            answer = wire.replica.process(wire.link.session_id, request)
        except RefusedError as error:
            wire.answer(
                request, RequestFailed(wire.link, request, str(error), fence_in(str(error)))
            )
            return
        if isinstance(request, AppendToReplica):
            wire.unsynced.append((request, answer))
        else:
            self.sync(wire.replica)
            wire.answer(request, RequestAnswered(wire.link, request, answer))

    def sync(self, replica: FakeReplica) -> None:
        """Sync the replica and let go of all answers that waited for it."""
        replica.sync()
        for wire in self.wires:
            if wire.replica is replica:
                for request, answer in wire.unsynced:
                    wire.answer(request, RequestAnswered(wire.link, request, answer))
                wire.unsynced.clear()

    def deliver_answer(self, server: Server, wire: Wire) -> None:
        server.step(wire.answers.pop(0))

    def cut(self, server: Server, wire: Wire) -> None:
        del server.wires[wire.link]
        wire.is_cut = True
        if self.random.random() < 0.5:
            wire.requests.clear()
        server.step(ReplicaLost(wire.link, "cut"))

    def time_out(self, server: Server, wire: Wire) -> None:
        """A request is not answered in time; it may be carried out all the same."""
        waiting = [each for each in wire.requests if not wire.has_timed_out(each)]
        if waiting:
            wire.timed_out.append(waiting[-1])
            server.step(RequestFailed(wire.link, waiting[-1], "timed out"))

    def crash(self, replica: FakeReplica) -> None:
        replica.crash(self.random.randint(0, len(replica.log) - replica.synced))
        for wire in self.wires:
            if wire.replica is replica:
                wire.requests.clear()
                wire.unsynced.clear()
        for server in self.servers:
            for wire in [wire for wire in server.wires.values() if wire.replica is replica]:
                self.cut(server, wire)

    def coordinate(self, server: Server, *, fails: bool) -> None:
        request = server.metadata_requests.pop(0)
        if fails and self.random.random() < 0.5:
            server.step(
                MetadataReadFailed("lost")
                if isinstance(request, ReadMetadata)
                else MetadataWriteFailed("lost before")
            )
            return
        match request:
            case ReadMetadata():
                server.step(MetadataRead(self.metadata, self.version, self.assigned))
            case WriteMetadata(metadata, version):
                server.step(self.write_metadata(metadata, version, fails=fails))

    def write_metadata(
        self, metadata: PartitionMetadata, version: int, *, fails: bool
    ) -> MetadataWritten | MetadataWriteFailed:
        if version != self.version:
            return MetadataWriteFailed("conflict")
        assert metadata.session_id >= self.metadata.session_id
        self.metadata, self.version = metadata, version + 1
        return MetadataWriteFailed("lost after") if fails else MetadataWritten(self.version)

    def replace_replica(self) -> None:
        """Change the assignment by one replica."""
        spare = [replica_id for replica_id in self.replicas if replica_id not in self.assigned]
        if spare:
            kept = [*self.assigned]
            kept[self.random.randrange(len(kept))] = self.random.choice(spare)
            self.assigned = tuple(sorted(kept))

    def change_assignment(self) -> None:
        """Assign any replicas, however few of those that are."""
        count = self.random.randint(1, min(5, len(self.replicas)))
        self.assigned = tuple(sorted(self.random.sample([*self.replicas], count)))

    def show_assignment(self, server: Server) -> None:
        server.assignment_seen = self.assigned
        server.step(ReplicasAssigned(self.assigned))

    # The driver

    def possible(self) -> list[tuple[object, ...]]:
        """Everything that may happen next without a fault."""
        actions: list[tuple[object, ...]] = []
        self.wires = [wire for wire in self.wires if not wire.is_cut or wire.requests]
        for wire in self.wires:
            if wire.requests:
                actions.append((self.deliver_request, wire))
            if wire.unsynced:
                actions.append((self.sync, wire.replica))
        for server in self.servers:
            actions += [
                (self.wire_up, server, link)
                for link in server.connecting
                if self.replicas[link.replica_id].is_up
            ]
            actions += [
                (self.deliver_answer, server, wire)
                for wire in server.wires.values()
                if wire.answers
            ]
            actions += [(self.send_later, server, send) for send in server.later]
            if server.metadata_requests:
                actions.append((self.coordinate, server))
            if server.assignment_seen != self.assigned:
                actions.append((self.show_assignment, server))
            deadline = server.keeper.deadline
            if deadline is not None:
                actions.append((self.wake, server, deadline))
        return actions

    def send_later(self, server: Server, send: SendRequest) -> None:
        server.later.remove(send)
        if wire := server.wires.get(send.link):
            wire.requests.append(send.request)

    def wake(self, server: Server, deadline: float) -> None:
        self.now = max(self.now, deadline)
        server.step()

    def happen(self, action: tuple[object, ...], *, fails: bool = False) -> None:
        verb, *arguments = action
        if verb == self.coordinate:
            self.coordinate(arguments[0], fails=fails)  # type: ignore[arg-type]
        else:
            verb(*arguments)  # type: ignore[operator]

    def fault(self) -> None:
        """One thing that goes wrong, or changes from outside."""
        random = self.random
        server = random.choice(self.servers)
        replica = random.choice([*self.replicas.values()])
        dice = random.random()
        if dice < 0.25 and server.wires:
            self.cut(server, random.choice([*server.wires.values()]))
        elif dice < 0.3 and server.wires:
            self.time_out(server, random.choice([*server.wires.values()]))
        elif dice < 0.5 and replica.is_up:
            self.crash(replica)
        elif dice < 0.7:
            replica.is_up = True
            replica.reads_fail = random.random() < 0.1
        elif dice < 0.8:
            self.now += random.choice((0.05, 1.0, 30.0))
        elif dice < 0.85 and len(self.servers) < 6:
            self.add_server()
        elif dice < 0.9:
            self.close(server)
            self.add_server()
        elif dice < 0.93:
            if self.changes_many:
                self.change_assignment()
            else:
                self.replace_replica()
        elif dice < 0.95 and self.blank_budget:
            self.blank_budget -= 1
            self.crash(replica)
            replica.blank()
        elif dice < 0.97 and len(self.servers) > 1:
            self.close(server)
        elif dice < 0.99 and self.damage_budget and replica.synced and replica.is_repairable:
            self.damage_budget -= 1
            self.damage(replica)
        elif dice >= 0.99 and self.loss_budget:
            self.loss_budget -= 1
            self.lose_a_record()

    def lose_a_record(self) -> None:
        """Damage one record wherever it is, if all replicas hold it, and another one behind it."""
        holders = [*self.replicas.values()]
        common = min(replica.synced for replica in holders)
        if common < 2:
            return
        place = self.random.randrange(common - 1)
        self.lost.add(place)
        for replica in holders:
            replica.damaged.add(place)

    def damage(self, replica: FakeReplica) -> None:
        first = self.random.randrange(replica.synced)
        for place in range(first, min(first + self.random.randint(1, 4), replica.synced)):
            if self.harmed.setdefault(place, replica) is replica:
                replica.damaged.add(place)

    def close(self, server: Server) -> None:
        server.step(CloseRequested())
        assert not server.is_open
        self.forget(server)

    def forget(self, server: Server) -> None:
        """A server is killed, or has closed; what it sent may still arrive."""
        self.servers.remove(server)
        for wire in server.wires.values():
            wire.is_cut = True

    def run(self, steps: int, *, fault_rate: float) -> None:
        self.add_server()
        for _ in range(steps):
            dice = self.random.random()
            if dice < fault_rate:
                self.fault()
            elif dice < fault_rate + 0.15:
                server = self.random.choice(self.servers)
                if len(server.submitted) < 20:
                    server.submit(self.new_record())
            elif actions := self.possible():
                self.happen(self.random.choice(actions), fails=self.random.random() < fault_rate)

    def heal(self, *, steps_max: int = 20_000) -> Server:
        """Stop all faults and wait until the latest owner is done and all replicas agree.

        It owes an outcome for all that was ever submitted to it.
        """
        owner = self.end_faults()
        self.go_on(self.is_quiet, steps_max)
        assert self.is_quiet(owner), "no progress"
        self.check_log()
        return owner

    def heal_in_part(self, *, steps_max: int = 5_000) -> Server | None:
        """As `heal`, where records are lost for good: wait until the latest owner takes appends.

        A replica that was cut before a lost record, or has nothing behind it, stays out. Return
        None if too many are.
        """
        owner = self.end_faults()
        self.go_on(self.is_done, steps_max)
        able = [
            replica
            for replica_id in self.assigned
            if (replica := self.replicas[replica_id]).last > max(self.lost)
        ]
        assert self.is_done(owner) or len(able) < majority(len(self.assigned)), "no progress"
        self.check_log()
        return owner if self.is_done(owner) else None

    def is_done(self, owner: Server) -> bool:
        return owner.is_open and not owner.submitted

    def end_faults(self) -> Server:
        """Return the owner in the end."""
        for replica in self.replicas.values():
            replica.is_up, replica.reads_fail = True, False
        for server in self.servers[:-1]:
            self.forget(server)
        owner = self.servers[-1]
        if owner.generation < self.metadata.generation:
            # The latest owner was closed, and the partition is nobody's.
            self.forget(owner)
            owner = self.add_server()
        owner.submit(self.new_record())
        return owner

    def go_on(self, is_over: Callable[[Server], bool], steps_max: int) -> None:
        owner = self.servers[-1]
        for _ in range(steps_max):
            if is_over(owner):
                break
            if actions := self.possible():
                # Time passes when nothing else is left to do: bounds on time are generous.
                later = (self.wake, self.send_later)
                prompt = [action for action in actions if action[0] not in later]
                self.happen(self.random.choice(prompt or actions))
            else:
                # A replica may wait for the log to grow beyond its low-water mark.
                assert len(self.log) < 100, "nothing can happen any more"
                owner.submit(self.new_record())

    def is_quiet(self, owner: Server) -> bool:
        mark = owner.keeper.high_water_mark
        return (
            mark is not None
            and not owner.submitted
            and owner.keeper.deadline is None
            and not any(replica.damaged - self.lost for replica in self.replicas.values())
            and all(
                [*self.replicas[replica_id].log[: mark + 1]]
                == [self.log[transaction_id] for transaction_id in range(mark + 1)]
                and self.replicas[replica_id].last == mark
                for replica_id in self.assigned
            )
        )


class Calm(World):
    """A world where all that can happen happens at once, but time passes only when told to."""

    def __init__(self, replica_count: int = 3) -> None:
        super().__init__(0, replica_count)
        self.server = self.add_server()
        self.settle()

    def settle(self, *, idle: tuple[str, ...] = (), coordinates: bool = True) -> None:
        """Let everything happen, but nothing at the replicas named `idle`."""
        while actions := [
            action
            for action in self.possible()
            if action[0] != self.wake
            and not any(name in str(action[1:]) for name in idle)
            and (coordinates or action[0] != self.coordinate)
        ]:
            self.happen(actions[0])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.server.step()
        self.settle()

    def down(self, name: str) -> None:
        self.crash(self.replicas[ReplicaId(f"{name}:1")])

    def up(self, name: str) -> None:
        self.replicas[ReplicaId(f"{name}:1")].is_up = True

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            self.server.submit(self.new_record())

    def told(self, server: Server | None = None) -> list[StoreEvent]:
        name = (server or self.server).name
        return [
            effect
            for entry in self.trace
            if isinstance(entry, tuple) and entry[0] == name
            for effect in entry[1:]
            if isinstance(effect, StoreOpened | StoreClosed | Committed | AppendsFailed)
        ]

    def sessions(self) -> list[int]:
        return [event.session_id for event in self.told() if isinstance(event, StoreOpened)]

    def newest(self) -> StoreEvent:
        return self.told()[-1]
