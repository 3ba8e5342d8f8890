"""The store of one partition, as its server uses it.

Owns the tasks that carry out what the session keeper decides: waiting for storage connections,
sending requests, and the coordinator's compare-and-set. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import assert_never

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.errors import (
    RemoteStorageError,
    WaltzError,
)
from waltz.host import Host
from waltz.limits import (
    CHECKPOINT_TRANSACTIONS,
    OBSTACLE_SECONDS,
    SERVER_MAILBOX_EVENTS_MAX,
    SMALL_BYTES_MAX,
)
from waltz.log_fields import Fields
from waltz.machine_shell import Lane, Mailbox, Turns
from waltz.record import NewRecord
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreEvent, StoreOpened
from waltz.store.messages import RequestFrames, answer_to, fence_in
from waltz.store.noted_clients import NotedClients
from waltz.store.partition_coordination_shell import PartitionCoordination, pause
from waltz.store.recovery import HighWaterMarkResolved
from waltz.store.repairer import ReplicaDamage, damage_text
from waltz.store.replica_reports_shell import ReplicaReports
from waltz.store.requests import (
    AppendToReplica,
    AskCondition,
    ConnectReplica,
    DropReplica,
    ReadMetadata,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    ReplicaRequest,
    ReplicaSuspected,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    SetLowWaterMark,
    WriteMetadata,
)
from waltz.store.session_keeper import (
    AppendsSubmitted,
    CloseRequested,
    KeeperEffect,
    KeeperEvent,
    LoseOwnership,
    SessionKeeper,
)
from waltz.store.storage_connections_shell import StorageConnections as StorageConnections
from waltz.store.storage_connections_shell import StorageExchange
from waltz.store.store_reads_shell import StoreReads
from waltz.types import Generation, PartitionId, ReplicaId, SessionId
from waltz.wire.handshake import Link
from waltz.wire.journal_entries import note_text
from waltz.wire.storage_protocol import (
    CLIENT_NOTES_MAX,
    ClientNote,
    NoteClientsRequest,
    StorageMessage,
)

log = logging.getLogger(__name__)


class StorePartition:
    """The replicated log of one partition, for the server that owns it at `generation`.

    It serves that generation only: once a later one owns the partition it is closed to appends, and
    a server that gets the partition back makes a new one.

    `on_event` is called by a step, in order; `events.py` says what follows what. It must not raise.
    Turns wait in the `lane` while it is used; answers to small batches do not wait then.
    """

    def __init__(
        self,
        host: Host,
        partition_id: PartitionId,
        generation: Generation,
        connections: StorageConnections,
        *,
        on_event: Callable[[StoreEvent], None],
        lane: Lane | None = None,
        root: str = DEFAULT_ROOT,
        checkpoint_transactions: int = CHECKPOINT_TRANSACTIONS,
    ) -> None:
        self.partition_id = partition_id
        self._host = host
        self._connections = connections
        self._on_event = on_event
        self._lane = Lane() if lane is None else lane
        self._keeper = SessionKeeper(generation, checkpoint_transactions=checkpoint_transactions)
        self._mailbox: Mailbox[KeeperEvent] = Mailbox(host.clock, SERVER_MAILBOX_EVENTS_MAX)
        self._coordination = PartitionCoordination(host, partition_id, root, self._mailbox.put)
        self._turns = Turns(self._keeper, self._mailbox, host, self._perform, lane=self._lane)
        self._is_hurried = False
        """Whether what a step brings about leaves at once."""
        self._frames = RequestFrames(partition_id)
        self._noted = NotedClients()
        self._links: dict[ReplicaLink, asyncio.Task[None]] = {}
        self._exchanges: dict[ReplicaLink, StorageExchange] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._fault: BaseException | None = None
        self.reads = StoreReads(
            host.clock,
            partition_id,
            self._keeper,
            self._exchanges,
            self._frames,
            lambda link: self._mailbox.put(ReplicaSuspected(link)),
        )
        self.reports = ReplicaReports(
            host.clock, self._keeper, self._exchanges, self._frames, self._start
        )

    def append(self, records: Sequence[NewRecord], *, at_once: bool = False) -> None:
        """Append `records` in order. Their outcomes come as events, in the same order.

        The caller bounds how many are undecided at a time. `at_once`: they leave for the replicas
        before this returns, if there is room and nothing waits before them.
        """
        if at_once:
            self._take_at_once(AppendsSubmitted(records))
        else:
            self._mailbox.put(AppendsSubmitted(records))

    def _take_at_once(self, event: KeeperEvent) -> None:
        self._is_hurried = True
        try:
            self._turns.take_in_order(event)
        finally:
            self._is_hurried = False

    def close(self) -> None:
        """Stop at once. What is undecided stays so: the next owner's recovery decides it."""
        self._mailbox.put(CloseRequested())

    async def run(self) -> None:
        """Keep a store session open while `generation` owns the partition; return after `close`."""
        try:
            self._start(self._coordination.follow_assignment())
            self._start(self._tell_obstacles())
            await self._turns.run()
        finally:
            self.reads.end()
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            for task in tasks:
                await asyncio.wait([task])
        if self._fault is not None:
            raise self._fault

    def note_clients(self, clients: Sequence[ClientNote]) -> None:
        """Let the replicas note in their journals that these clients, at most `CLIENT_NOTES_MAX`,
        have mounted the partition; longer texts are cut.

        Replicas whose version cannot are passed over. Nothing rests on notes: their answers are not
        waited for, and a note is sent again only to replicas on which a session starts later.
        """
        notes = tuple(ClientNote(each.client_id, *map(note_text, each[1:])) for each in clients)
        self._noted.add(notes)
        for link, exchange in self._exchanges.items():
            if exchange.notes_clients and exchange.ended is None:
                exchange.request(partial(self._notes_frame, notes, link), _ignore)

    def _tell_clients(self, link: ReplicaLink, exchange: StorageExchange) -> None:
        """Tell a replica on which a session starts all clients that have mounted the partition,
        before the session's first append."""
        notes = self._noted.all()
        if notes is None or not exchange.notes_clients:
            return
        for first in range(0, max(len(notes), 1), CLIENT_NOTES_MAX):
            part = tuple(notes[first : first + CLIENT_NOTES_MAX])
            exchange.request(partial(self._notes_frame, part, link), _ignore)

    def _notes_frame(
        self, clients: tuple[ClientNote, ...], link: ReplicaLink, wire: Link, number: int
    ) -> bytes:
        return wire.encode(NoteClientsRequest(link.session_id, number, self.partition_id, clients))

    # Effects

    def _perform(self, effect: KeeperEffect) -> None:
        match effect:
            case SendRequest(link, request, delay_seconds):
                if delay_seconds:
                    self._start(self._send_later(link, request, delay_seconds))
                else:
                    self._send(link, request)
            case Committed() | AppendsFailed():
                self._on_event(effect)
            case ConnectReplica(link, delay_seconds):
                self._links[link] = self._start(self._keep(link, delay_seconds))
            case DropReplica(link, reason):
                log.info("replica_dropped %s reason=%s", _named(self.partition_id, link), reason)
                self._exchanges.pop(link, None)
                self._links.pop(link).cancel()
            case ReadMetadata(delay_seconds):
                self._start(self._coordination.read_metadata(delay_seconds))
            case WriteMetadata(metadata, version):
                self._start(self._coordination.write_metadata(metadata, version))
            case StoreOpened(session_id, mark):
                number = self.partition_id
                log.info("store_opened partition=%d session=%d mark=%d", number, session_id, mark)
                self.reports.opened_at = self._host.clock.now()
                self.reads.opened.set()
                self._noted.session_opened()
                self._on_event(effect)
            case StoreClosed(reason):
                log.info("store_closed partition=%d reason=%s", self.partition_id, reason)
                self.reads.opened.clear()
                self._on_event(effect)
            case ReplicaDamage():
                self._tell_damage(effect)
            case LoseOwnership(reason):
                log.info("ownership_lost partition=%d reason=%s", self.partition_id, reason)
            case HighWaterMarkResolved(mark):
                log.debug("mark_resolved partition=%d mark=%d", self.partition_id, mark)
            case _:
                assert_never(effect)

    def _send(self, link: ReplicaLink, request: ReplicaRequest) -> None:
        exchange = self._exchanges.get(link)
        if exchange is None or exchange.ended is not None:
            return  # `_keep` reports it
        if isinstance(request, AskCondition):
            self.reports.words.asked(link.replica_id, self._keeper.high_water_mark)
        exchange.request(
            partial(self._frames.frame, request, link), partial(self._take_answer, link, request)
        )
        if isinstance(request, SetLowWaterMark):
            self._tell_clients(link, exchange)
        if self._is_hurried:
            exchange.flush()

    @property
    def replica_ids(self) -> tuple[ReplicaId, ...] | None:
        """The partition's replicas as the coordinator has assigned them; None: not read yet."""
        return self._keeper.assigned

    async def _tell_obstacles(self) -> None:
        """Say what stands in the way, as long as it does (hazard R3)."""
        was_in_the_way = False
        while True:
            await asyncio.sleep(OBSTACLE_SECONDS)
            obstacle = self._keeper.obstacle
            if obstacle is not None and was_in_the_way:
                log.warning(
                    "store_waits partition=%d reason=%s; see docs/operating/waiting-partitions.md",
                    self.partition_id,
                    obstacle,
                )
            was_in_the_way = obstacle is not None

    def _tell_damage(self, found: ReplicaDamage) -> None:
        name, repaired = _named(self.partition_id, found.link), found.repaired_count
        if found.unsupplied:
            # Nothing but another replica's records could take their place: only people can help.
            left = damage_text(found.unsupplied)
            log.warning("damage_not_repairable %s repaired=%d left=%s", name, repaired, left)
        elif found.damaged:
            log.warning("damage_found %s damaged=%s", name, damage_text(found.damaged))
        else:
            log.info("damage_repaired %s repaired=%d", name, repaired)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        """A task that raised is a bug: stop the partition rather than go on without it."""
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self.close()

    # Replicas

    async def _keep(self, link: ReplicaLink, delay_seconds: float) -> None:
        await pause(self._host, delay_seconds)
        exchange = await self._connections.to(link.replica_id).connected()
        self._exchanges[link] = exchange
        self._mailbox.put(ReplicaConnected(link, exchange.is_repairable, exchange.is_tolerant))
        reason = await exchange.over()
        self._mailbox.put(ReplicaLost(link, reason))

    async def _send_later(
        self, link: ReplicaLink, request: ReplicaRequest, delay_seconds: float
    ) -> None:
        await pause(self._host, delay_seconds)
        self._send(link, request)

    def _take_answer(
        self, link: ReplicaLink, request: ReplicaRequest, result: StorageMessage | WaltzError
    ) -> None:
        if (exchange := self._exchanges.get(link)) is not None:
            now, said = self._host.clock.now(), exchange.says_refusal
            self.reports.words.hear(link.replica_id, request, result, now, says_refusal=said)
        if isinstance(result, WaltzError):
            self._mailbox.put(RequestFailed(link, request, str(result), _fence(result)))
            return
        try:
            answer = answer_to(request, result)
        except WaltzError as error:
            self._mailbox.put(RequestFailed(link, request, str(error)))
            return
        answered = RequestAnswered(link, request, answer)
        is_small = type(request) is AppendToReplica and len(request.batch.block) <= SMALL_BYTES_MAX
        if is_small and self._lane.is_used:
            self._take_at_once(answered)
        else:
            self._mailbox.put(answered)


def _fence(error: WaltzError) -> SessionId | None:
    return fence_in(str(error)) if isinstance(error, RemoteStorageError) else None


def _named(partition_id: PartitionId, link: ReplicaLink) -> Fields:
    return Fields(
        partition=partition_id,
        session=link.session_id,
        replica=link.replica_id,
        attempt=link.attempt,
    )


def _ignore(_: StorageMessage | WaltzError) -> None:
    """Take an answer on which nothing rests."""
