"""One partition of a server at work: its machine next to its store.

Carries out what the machine wants; decides nothing. What it does to connections goes through the
server's clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias, assert_never

from waltz.errors import UnreadableError, WaltzError
from waltz.host import Host
from waltz.limits import SERVER_MAILBOX_EVENTS_MAX, SMALL_BYTES_MAX
from waltz.machine_shell import Lane, Mailbox, Turns
from waltz.server.clients.client_notes import NOTES_PAUSE_SECONDS, ClientNotes
from waltz.server.clients.mounted_clients import ConnectionFacts
from waltz.server.feeding.backlog import BacklogEffect, ResumeReading, StopReading, WorkedOff
from waltz.server.feeding.fetches import UNREADABLE_MAX, FetchRecords
from waltz.server.feeding.outbox import Part, Send
from waltz.server.held_partition import HeldPartition
from waltz.server.hold import NO_SUCH_HOLD
from waltz.server.server_metrics import ServerPartitionState
from waltz.server.server_partition_events import (
    AppendToStore,
    ClientMounted,
    CloseClientConnection,
    HoldBegun,
    HoldEnded,
    HoldEvent,
    HoldReleased,
    HoldRequested,
    PartitionEffect,
    PartitionEvent,
    RecordsRead,
    RequestsDropped,
    StoreReadFailed,
)
from waltz.store.events import Committed, StoreEvent
from waltz.store.standing import StoreReport
from waltz.store.store_partition_shell import StorePartition
from waltz.types import TransactionId
from waltz.wire.storage_protocol import CLIENT_NOTES_MAX

OpenStore: TypeAlias = Callable[[Callable[[StoreEvent], None]], StorePartition]

logger = logging.getLogger(__name__)

CLOSED = "its server closes it"


class PartitionClients(Protocol):
    """The part of a server's clients that its partitions need."""

    lane: Lane
    """Turns wait here while clients have much under way."""

    def send(self, connection_id: int, parts: Sequence[Part]) -> None:
        """Write `parts` if the connection is still there."""
        ...

    def flush(self, connection_id: int) -> None:
        """Send what was written so far, before others have their turn."""
        ...

    def cut_off(self, connection_id: int, reason: str) -> None: ...

    def note_backlog(self, opening: int, effect: BacklogEffect) -> None: ...

    def facts(self, connection_id: int) -> ConnectionFacts | None:
        """Return what operators are told of the connection; None: it is gone."""
        ...


class RunningPartition:
    """Runs the machine of one partition next to its store."""

    def __init__(
        self,
        host: Host,
        clients: PartitionClients,
        opening: int,
        machine: HeldPartition,
        store: OpenStore,
    ) -> None:
        self.opening = opening
        self.machine = machine
        self._clients = clients
        self._mailbox: Mailbox[PartitionEvent | HoldEvent] = Mailbox(
            host.clock, SERVER_MAILBOX_EVENTS_MAX
        )
        self.put: Callable[[PartitionEvent | HoldEvent], None] = self._mailbox.put
        self._clock = host.clock
        self._commits: deque[tuple[TransactionId, float]] = deque()
        """The last transaction of each commit that clients have not been told, and its time."""
        self._turns = Turns(
            machine,
            self._mailbox,
            host,
            self._perform,
            lane=clients.lane,
            stepped=self._note_told,
        )
        self.take_now: Callable[[PartitionEvent | HoldEvent], None] = self._turns.take_now
        self._is_hurried = False
        """Whether what a step brings about goes on at once."""
        self._store = store(self._take_from_store)
        self._notes = ClientNotes()
        self._telling: asyncio.Task[None] | None = None
        self._holding: dict[int, asyncio.Future[HoldBegun]] = {}
        self._releasing: dict[int, asyncio.Future[HoldEnded]] = {}
        """The answers that are waited for, by hold."""
        self._is_over = False
        """Whether the machine takes no more events."""
        self._reads: dict[FetchRecords, asyncio.Task[None]] = {}
        self._unreadable_told: dict[TransactionId, None] = {}
        """Those of which it was told lately that no replica can give them."""

    async def run(self) -> None:
        """Return once the machine has closed."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._store.run())
                self._group = group
                await self._turns.run()
                self._store.close()
                if self._telling is not None:
                    self._telling.cancel()
                for read in self._reads.values():
                    read.cancel()
        finally:
            self._is_over = True
            for hold_id in [*self._holding]:
                self._tell_hold(HoldBegun(hold_id, CLOSED))
            for hold_id in [*self._releasing]:
                self._tell_hold(HoldEnded(hold_id, NO_SUCH_HOLD))

    def hold(self, asked: HoldRequested) -> asyncio.Future[HoldBegun]:
        """Begin a hold ahead of all that waits: commits that wait are not announced then."""
        answer = self._holding[asked.hold_id] = asyncio.get_running_loop().create_future()
        if self._is_over:
            self._tell_hold(HoldBegun(asked.hold_id, CLOSED))
        else:
            self._turns.take_now(asked)
        return answer

    def release(self, asked: HoldReleased) -> asyncio.Future[HoldEnded]:
        """End a hold after all that waits: the end of a store session that waits breaks the
        hold."""
        answer = self._releasing.get(asked.hold_id)
        if answer is not None:
            return answer  # asked for twice
        answer = self._releasing[asked.hold_id] = asyncio.get_running_loop().create_future()
        if self._is_over:
            self._tell_hold(HoldEnded(asked.hold_id, NO_SUCH_HOLD))
        else:
            self.put(asked)
        return answer

    def _tell_hold(self, answer: HoldBegun | HoldEnded) -> None:
        if isinstance(answer, HoldBegun):
            holding = self._holding.pop(answer.hold_id, None)
            if holding is not None and not holding.done():
                holding.set_result(answer)
        else:
            releasing = self._releasing.pop(answer.hold_id, None)
            if releasing is not None and not releasing.done():
                releasing.set_result(answer)

    def take_at_once(self, event: PartitionEvent) -> None:
        """Step with a small event now, if nothing waits before it, and hand on at once what the
        step brings about: to the store and its replicas, and to clients."""
        self._is_hurried = True
        try:
            self._turns.take_in_order(event)
        finally:
            self._is_hurried = False

    def _take_from_store(self, event: StoreEvent) -> None:
        is_small = False
        if type(event) is Committed:
            self._commits.append((event.batch.last_transaction_id, self._clock.now()))
            is_small = len(event.batch.block) <= SMALL_BYTES_MAX
        if is_small and self._clients.lane.is_used:
            self.take_at_once(event)
        else:
            self.put(event)

    def _note_told(self) -> None:
        """After a step: the commits that it took are written to the clients that wait for them."""
        commits, mark = self._commits, self.machine.high_water_mark
        if not commits or mark is None or commits[0][0] > mark:
            return
        now, seconds = self._clock.now(), self.machine.append_seconds.feed
        while commits and commits[0][0] <= mark:
            seconds.add(now - commits.popleft()[1])

    def state(self, failures: int) -> ServerPartitionState:
        """Return the partition's state; if it takes no appends, the reason of each replica."""
        return self._with_store(failures, self._store.reports.report())

    async def look(self, failures: int) -> ServerPartitionState:
        """As `state`, once the replicas have been asked."""
        return self._with_store(failures, await self._store.reports.look())

    def _with_store(self, failures: int, report: StoreReport) -> ServerPartitionState:
        opened_at, state = self._store.reports.opened_at, self.machine.state(failures)
        found = replace(
            state,
            store=report,
            replica_ids=self._store.replica_ids,
            session_seconds=self._clock.now() - opened_at if state.is_open else None,
        )
        if found.reason is None or report.obstacle is None:
            return found
        return replace(found, reason=f"{found.reason}; {report.obstacle}")

    def _perform(self, effect: PartitionEffect) -> None:
        match effect:
            case Send(connection_id, parts):
                self._clients.send(connection_id, parts)
                if self._is_hurried:
                    self._clients.flush(connection_id)
            case AppendToStore(records):
                # Each replica notes the clients that have sent the records before the records come.
                self._send_notes()
                self._store.append(records, at_once=self._is_hurried)
            case FetchRecords():
                self._reads[effect] = self._group.create_task(self._read(effect))
            case ClientMounted(connection_id, client_id):
                self._notes.add(client_id, self._clients.facts(connection_id))
                if self._notes.count >= CLIENT_NOTES_MAX:
                    self._send_notes()
                elif self._notes.count and (self._telling is None or self._telling.done()):
                    self._telling = self._group.create_task(self._tell_replicas())
            case CloseClientConnection(connection_id, reason):
                self._clients.cut_off(connection_id, reason)
            case HoldBegun() | HoldEnded():
                self._tell_hold(effect)
            case WorkedOff() | StopReading() | ResumeReading():
                self._clients.note_backlog(self.opening, effect)
            case RequestsDropped(connection_id, reason, count):
                logger.debug(
                    "requests_dropped partition=%d connection=%d count=%d reason=%s",
                    self.machine.partition_id,
                    connection_id,
                    count,
                    reason,
                )
            case _:
                assert_never(effect)

    async def _tell_replicas(self) -> None:
        """Have the journals note the clients that have mounted just now."""
        await asyncio.sleep(NOTES_PAUSE_SECONDS)
        self._send_notes()

    def _send_notes(self) -> None:
        if self._notes.count:
            self._store.note_clients(self._notes.take())

    async def _read(self, wanted: FetchRecords) -> None:
        first, count_max, with_data = (
            wanted.first_transaction_id,
            wanted.count_max,
            wanted.with_data,
        )
        read = self._store.reads.read if with_data else self._store.reads.read_headers
        try:
            self.put(RecordsRead(first, await read(first, count_max), with_data))
        except WaltzError as error:
            is_unreadable = isinstance(error, UnreadableError)
            if is_unreadable and first not in self._unreadable_told:
                # Once per record: clients that wait for it cause many reads.
                self._unreadable_told[first] = None
                if len(self._unreadable_told) > UNREADABLE_MAX:
                    del self._unreadable_told[next(iter(self._unreadable_told))]
                number = self.machine.partition_id
                logger.warning(
                    "transaction_unreadable partition=%d transaction=%d error=%s",
                    number, first, error,
                )  # fmt: skip
            self.put(StoreReadFailed(first, str(error), with_data, is_unreadable))
        finally:
            del self._reads[wanted]
