"""The clients of a server: their logical connections, and the TCP connections that carry these.

Turns the decisions of `Terms`, `Contexts` and `Idleness` into bytes and timers; decides nothing.
Up to version 4 of the protocol a client has one TCP connection and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import assert_never
from uuid import UUID

from waltz.access.permissions import Permissions
from waltz.access.policy import Policy
from waltz.access.principals import ANONYMOUS_PRINCIPAL
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.host import Clock, Connection, Host
from waltz.limits import (
    HANDSHAKE_ATTEMPTS_MAX,
    SMALL_BYTES_MAX,
    TIMER_SECONDS_MIN,
    WRITE_BUFFER_BYTES_HIGH,
)
from waltz.machine_shell import Lane
from waltz.peer_log import PeerLog
from waltz.server.clients.arrivals_shell import Arrival, receive_arrival, receive_next_request
from waltz.server.clients.client_connection import Proof, Sorter
from waltz.server.clients.contexts import (
    UNKNOWN,
    ContextBroken,
    ContextClosed,
    ContextOpened,
    Contexts,
    RefuseRestore,
    ReleaseContext,
    RestoreContext,
    RestoreRequested,
)
from waltz.server.clients.contexts import Effect as ContextEffect
from waltz.server.clients.contexts import Event as ContextEvent
from waltz.server.clients.identification import BY_CERTIFICATE, Identification, Identified
from waltz.server.clients.identifier import Identifier
from waltz.server.clients.idleness import Idleness, IdlenessFinding
from waltz.server.clients.mounted_clients import ConnectionFacts
from waltz.server.clients.reception import Terms
from waltz.server.feeding.backlog import (
    BacklogEffect,
    Intake,
    ResumeReading,
    StopReading,
    UnderWay,
    WorkedOff,
)
from waltz.server.feeding.outbox import Part
from waltz.server.quotas.throttle_shell import Throttle
from waltz.server.server_partition_events import ConnectionDrained, ConnectionLost
from waltz.wire.client_label import ClientLabel, client_label
from waltz.wire.lifecycle_protocol import (
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Feature,
    HandshakeCode,
    HandshakeRequest,
    client_token,
)
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Codec, Message

logger = logging.getLogger(__name__)


class ConnectedClient:
    """A client as partitions know it: one logical connection; `connection` is None while it is
    broken."""

    def __init__(
        self,
        connection_id: int,
        connection: Connection,
        link: LogicalLink,
        clock: Clock,
        idle_seconds: float,
        peer_log: PeerLog,
        all_under_way: UnderWay,
        principal: str,
        token: bytes = b"",
        label: ClientLabel | None = None,
    ) -> None:
        """`idle_seconds` 0: it may be silent for ever. `principal` is that of its TCP connection,
        and of every one that restores it. `token` and `label`: what it showed, if anything."""
        self.connection_id = connection_id
        self.connection: Connection | None = connection
        self.peer = connection.peer
        self.link = link
        self.principal = principal
        self.permissions = Permissions(principal)
        self._certified = "" if principal == ANONYMOUS_PRINCIPAL else principal
        host, _, _ = connection.peer.rpartition(":")
        self.sorter = Sorter(
            connection_id,
            Proof(token, connection.certificate, host),
            has_lasting_sequence=link.has_lifecycle,
        )
        self.intake = Intake(all_under_way)
        self._all_under_way = all_under_way
        self.questions = 0
        """To the server as a whole, not answered yet."""
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._is_read = True
        """Whether `may_read` is set."""
        self._is_dispensable = False
        """Whether it may give way to others: it has no mount, and its silence has no bound."""
        self.draining: asyncio.Task[None] | None = None
        """Runs while the connection has more to send than it should."""
        self.turn = asyncio.Lock()
        """Held by the task that reads: the messages of one TCP connection are handed on before the
        next connection is read."""
        self.label = label
        self._connected_at = self._heard_at = clock.now()
        self._clock = clock
        self._peer_log = peer_log
        self._idle_seconds = idle_seconds
        self._idleness: Idleness | None = None
        self._timer: asyncio.TimerHandle | None = None

    def facts(self) -> ConnectionFacts:
        """Return what operators are told of the connection."""
        return ConnectionFacts(
            self.connection_id,
            self.label,
            self._certified,
            self.peer,
            self.link.link.version or 0,
            Feature.CLIENTS in self.link.features,
            self.connection is None,
            self._connected_at,
            self._heard_at,
        )

    @property
    def unsent_bytes(self) -> int:
        return 0 if self.connection is None else self.connection.unsent_bytes

    def note_intake(self) -> None:
        """The intake has changed, or a part of a frame has come."""
        if self.connection is not None:
            unfinished = self.link.link.frames.unfinished_bytes
            held = self.intake.byte_count + unfinished + self.link.retained.byte_count
            self.connection.note_held(held)
            if self._is_dispensable:
                self._is_dispensable = not self.sorter.has_mounted
                self.connection.note_dispensable(self._is_dispensable)
        if self.intake.may_read is not self._is_read:
            self._is_read = self.intake.may_read
            if self._is_read:
                self.may_read.set()
            else:
                self._all_under_way.stop_count += 1
                self.may_read.clear()

    def send(self, parts: Sequence[Part]) -> int:
        """Write `parts` at once, or keep them; return their size in bytes. Raises
        LocalProtocolError: nothing was written."""
        frames = [*map(self.link.encode, parts)]
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self.write(self.link.retain(data))
        return len(data)

    def write(self, data: bytes) -> None:
        """Write what the link has kept already."""
        if self.connection is not None and data:
            self.connection.write(data)

    def flush(self) -> None:
        """Send what was written so far, before others have their turn."""
        if self.connection is not None:
            self.connection.flush()

    async def read(self, connection: Connection) -> bytes:
        """Return what has come on `connection`; nothing once it, or its time, has ended."""
        if self._idleness is not None:
            self._idleness.begin_reading(self._clock.now())
            if self._timer is None:
                self._arm()
        data = await connection.read(self.link.link.frames.wanted_bytes)
        if self.connection is not connection:
            return b""
        self._heard_at = self._clock.now()
        if self._idleness is not None:
            self._idleness.hear(self._heard_at)
            if self._timer is None:
                self._arm()
        return data

    def attach(self, connection: Connection) -> None:
        """This TCP connection carries it from now on."""
        before, self.connection = self.connection, connection
        self.peer = connection.peer
        if before is not None:
            before.close()
        self.watch()

    def watch(self) -> None:
        """Begin to look whether the peer is silent."""
        if not self._idle_seconds and self.connection is not None:
            self._is_dispensable = True
            self.connection.note_dispensable(True)
        if self._idle_seconds:
            self._idleness = Idleness(self._idle_seconds, self._clock.now())
            if self._timer is None:
                self._arm()

    def detach(self) -> None:
        """The TCP connection has ended."""
        self.connection = None
        self.link.break_off()
        if self.draining is not None:
            self.draining.cancel()
            self.draining = None
        self._disarm()

    def end(self, reason: str) -> None:
        """Give it up and tell the peer, if it can be told."""
        farewell = self.link.end(reason)
        if self.connection is not None:
            self.write(farewell)
            self.connection.close()

    def _arm(self) -> None:
        assert self._idleness is not None
        assert self._timer is None
        seconds = self._idleness.deadline - self._clock.now()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(seconds, TIMER_SECONDS_MIN), self._look)

    def _disarm(self) -> None:
        self._idleness = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._idleness is None or self.connection is None:
            return
        match self._idleness.step(self._clock.now()):
            case IdlenessFinding.SILENT:
                self._peer_log.warning(
                    "client_idle peer=%s principal=%s idle_seconds=%g",
                    self.peer,
                    self.principal,
                    self._idle_seconds,
                )
                self.connection.close()
                return
            case IdlenessFinding.BEAT:
                if Feature.HEARTBEAT in self.link.features:
                    self.write(self.link.heartbeat(wants_answer=False))
            case IdlenessFinding.NOTHING:
                pass
        self._arm()


class Clients:
    """All clients of a server, from their first word to the release of what was kept for them."""

    def __init__(
        self,
        host: Host,
        codec: Codec,
        *,
        idle_seconds: float,
        restore_seconds: float,
        handshake_seconds: float,
        identification: Identification = BY_CERTIFICATE,
        hand_on: Callable[[ConnectedClient, Sequence[Message]], Awaitable[None]],
        tell_all: Callable[[ConnectionDrained | ConnectionLost], None],
        policy: Callable[[], Policy | None] = lambda: None,
    ) -> None:
        """`identification` says who a peer is. `hand_on` returns when there is room for more of
        that client's messages; `tell_all` reaches every partition. `policy` returns the
        one in force, which has the quotas."""
        self.throttle: Throttle[ConnectedClient] = Throttle(host.clock, policy)
        self.full: set[int] = set()
        """Connections that are handed nothing that can wait: they have more unsent bytes than they
        should, or are broken."""
        self.unsent_bytes_peak = 0
        self.lane = Lane()
        """Large work waits here while all clients together have much under way; else turns are
        short, and each takes all there is."""
        self._under_way = UnderWay(self._note_crowded)
        self._host = host
        self._codec = codec
        self._idle_seconds = idle_seconds
        self._handshake_seconds = handshake_seconds
        self._hand_on = hand_on
        self._tell_all = tell_all
        self._clients: dict[int, ConnectedClient] = {}
        self._count = 0
        self._arriving: dict[Connection, None] = {}
        self._contexts = Contexts(restore_seconds)
        self._timer: asyncio.TimerHandle | None = None
        self._terms: Terms | None = None
        self._has_terms = asyncio.Event()
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)
        self.identifier = Identifier(identification, self._peer_log)
        self._is_stopping = False

    def __iter__(self) -> Iterator[ConnectedClient]:
        return iter(self._clients.values())

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def broken_count(self) -> int:
        """The number of clients without a TCP connection at the moment."""
        return self._contexts.broken_count

    @property
    def throttled_count(self) -> int:
        """The number of clients that are not read now: they have too much under way."""
        return sum(not client.intake.may_read for client in self)

    @property
    def throttles(self) -> int:
        """The number of times that a client was no longer read."""
        return self._under_way.stop_count

    def facts(self, connection_id: int) -> ConnectionFacts | None:
        """Return what operators are told of the connection; None: it is gone."""
        client = self.find(connection_id)
        return None if client is None else client.facts()

    def find(self, connection_id: int) -> ConnectedClient | None:
        return self._clients.get(connection_id)

    def begin(self, terms: Terms) -> None:
        """Let those in who have arrived, and all who come; nobody is before."""
        self._terms = terms
        self._has_terms.set()

    def refuse(self) -> None:
        """Let nobody in any more, and keep nothing of those who go."""
        self._is_stopping = True

    def stop(self) -> None:
        """Tell everybody that nothing is kept, and close all connections."""
        self.refuse()
        for connection in self._arriving:
            connection.close()
        for client in list(self):
            self.end(client, "the server stops")
        if self._timer is not None:
            self._timer.cancel()

    def send(self, connection_id: int, parts: Sequence[Part]) -> None:
        """Write `parts` if the connection is still there, and tell all when it is full."""
        client = self._clients.get(connection_id)
        if client is None:
            return
        is_over = False
        try:
            is_over = self.throttle.is_over(client, client.send(parts))
        except LocalProtocolError as error:
            self.cut_off(connection_id, str(error))
        if client.connection is None:
            if not client.link.is_restorable:
                self.end(client, "the messages kept for the client exceed their limit")
            return
        unsent_bytes = client.connection.unsent_bytes
        self.unsent_bytes_peak = max(self.unsent_bytes_peak, unsent_bytes)
        if client.draining is None and (is_over or unsent_bytes > WRITE_BUFFER_BYTES_HIGH):
            self.full.add(connection_id)
            client.draining = asyncio.get_running_loop().create_task(self._drain(client))

    def flush(self, connection_id: int) -> None:
        """Send what was written to the connection so far, before others have their turn."""
        client = self._clients.get(connection_id)
        if client is not None:
            client.flush()

    def _note_crowded(self, is_crowded: bool) -> None:
        self.lane.is_used = is_crowded

    def note_backlog(self, opening: int, effect: BacklogEffect) -> None:
        """A partition has worked requests off, or cannot take more from a connection."""
        client = self._clients.get(effect.connection_id)
        if client is None:
            return
        match effect:
            case WorkedOff(_, byte_count):
                client.intake.settle(opening, byte_count)
            case StopReading():
                client.intake.stop(opening)
            case ResumeReading():
                client.intake.resume(opening)
            case _:
                assert_never(effect)
        client.note_intake()

    def cut_off(self, connection_id: int, reason: str) -> None:
        client = self._clients.get(connection_id)
        if client is not None:
            self._peer_log.warning(
                "client_cut_off peer=%s principal=%s reason=%s",
                client.peer,
                client.principal,
                reason,
            )
            self.end(client, reason)

    def end(self, client: ConnectedClient, reason: str) -> None:
        """Tell `client` that nothing is kept for it, and keep nothing."""
        client.end(reason)
        if client.connection is None:
            self._release(client)

    # TCP connections

    async def accept(self, connection: Connection) -> None:
        """Serve one connection to its end."""
        self._arriving[connection] = None
        client: ConnectedClient | None = None
        try:
            async with asyncio.timeout(self._handshake_seconds):
                arrival = await receive_arrival(connection, self._codec)
                if arrival is not None:
                    await self._has_terms.wait()
                    client, arrival = await self._let_in(arrival)
            del self._arriving[connection]
            if client is not None and arrival is not None and self._may_stay(client):
                await self._serve(client, arrival)
        except TimeoutError:
            self._peer_log.warning("client_silent peer=%s", connection.peer)
        except RemoteProtocolError as error:
            self._peer_log.warning("client_faulted peer=%s error=%s", connection.peer, error)
            if client is not None and client.connection is connection:
                client.end(str(error))
        finally:
            self._arriving.pop(connection, None)
            if client is not None and client.connection is connection:
                self._leave(client)

    async def _let_in(self, arrival: Arrival) -> tuple[ConnectedClient | None, Arrival | None]:
        """Return whom `arrival` is from, new or not, and what came after the handshake; None if
        nobody was let in. Raises RemoteProtocolError."""
        assert self._terms is not None, "begun"
        if self._is_stopping or (who := self.identifier.identified(arrival)) is None:
            return None, None
        next_arrival: Arrival | None = arrival
        for _ in range(HANDSHAKE_ATTEMPTS_MAX):
            if next_arrival is None:
                break
            arrival = next_arrival
            match arrival.request:
                case None:
                    return self._add(arrival, who, ()), arrival
                case ConnectionRestoreRequest():
                    return self._restore(arrival, arrival.request), arrival
                case HandshakeRequest():
                    key = self._host.random.uuid()
                    answer = self._terms.answer(arrival.request, key, by_token=who.by_token)
                    token = client_token(arrival.request.extensions)
                    label = client_label(arrival.request.extensions)
                    arrival.connection.write(arrival.link.encode(answer))
                    if answer.error_code == HandshakeCode.NONE:
                        arrival.link.opened()
                        return self._add(arrival, who, answer.features, key, token, label), arrival
            next_arrival = await receive_next_request(arrival)
        self._peer_log.info("client_not_let_in peer=%s", arrival.connection.peer)
        return None, None

    def _add(
        self,
        arrival: Arrival,
        who: Identified,
        features: Collection[int],
        key: UUID | None = None,
        token: bytes = b"",
        label: ClientLabel | None = None,
    ) -> ConnectedClient:
        self._count += 1
        connection = arrival.connection
        client = ConnectedClient(
            self._count,
            connection,
            LogicalLink(arrival.link, features),
            self._host.clock,
            0.0 if key is None else self._idle_seconds,
            self._peer_log,
            self._under_way,
            who.principal,
            token,
            label,
        )
        client.watch()
        self._clients[client.connection_id] = client
        if key is not None and Feature.RESTORE in features:
            proven = connection.user or connection.certificate
            self._note(ContextOpened(client.connection_id, key, proven))
        return client

    def _restore(
        self, arrival: Arrival, request: ConnectionRestoreRequest
    ) -> ConnectedClient | None:
        """Let the arrival go on with its connection, or tell it that this cannot be."""
        connection = arrival.connection
        proven = connection.user or connection.certificate
        effect = self._note(RestoreRequested(request.connection_id, proven, request.attempt))
        reason = effect.reason if isinstance(effect, RefuseRestore) else UNKNOWN
        if isinstance(effect, RestoreContext):
            client = self._clients[effect.connection_id]
            received = client.link.received
            again = self._resume(client, arrival.link.version, request.received)
            if again is not None:
                self._peer_log.info(
                    "client_restored peer=%s principal=%s again_bytes=%d",
                    connection.peer,
                    client.principal,
                    len(again),
                )
                client.attach(connection)
                answer = ConnectionRestoreResponse(True, received, "")
                connection.write(arrival.link.encode(answer) + again)
                self._fill(client)
                return client
            reason = "the messages to send again are no longer kept"
            self.end(client, reason)
        self._peer_log.info("client_unknown peer=%s reason=%s", connection.peer, reason)
        connection.write(arrival.link.encode(ConnectionRestoreResponse(False, 0, reason)))
        return None

    def _may_stay(self, client: ConnectedClient) -> bool:
        """Return whether its quota allows the principal this connection, too; else end it."""
        if (reason := self.throttle.refusal(client, self)) is not None:
            self.cut_off(client.connection_id, reason)
        return reason is None

    def _resume(self, client: ConnectedClient, version: int | None, received: int) -> bytes | None:
        """Return what is to be sent again; None if that cannot be."""
        if version != client.link.version:
            return None
        try:
            return client.link.resume(received)
        except RemoteProtocolError as error:
            self._peer_log.warning("client_faulted peer=%s error=%s", client.peer, error)
            return None

    def _fill(self, client: ConnectedClient) -> None:
        """Let the partitions wait until what is sent again has gone."""
        self.full.add(client.connection_id)
        if client.draining is not None:
            client.draining.cancel()
        client.draining = asyncio.get_running_loop().create_task(self._drain(client))

    async def _serve(self, client: ConnectedClient, arrival: Arrival) -> None:
        """Raises RemoteProtocolError."""
        connection, data = arrival.connection, arrival.rest
        async with client.turn:
            while client.connection is connection:
                messages = client.link.receive(data)
                if replies := client.link.take_replies():
                    client.write(replies)
                for portion in self.throttle.portions(client, messages):
                    if portion and not await self.throttle.lets(client, portion):
                        return
                    await self._hand_on(client, portion)
                if client.draining is not None and self.throttle.has_quotas:
                    await asyncio.wait([client.draining])
                if (reason := client.link.end_reason) is not None:
                    self._peer_log.info(
                        "client_left peer=%s principal=%s reason=%.200r",
                        connection.peer,
                        client.principal,
                        reason,
                    )
                    return
                if not (data := await client.read(connection)):
                    return
                if len(data) > SMALL_BYTES_MAX and self.lane.is_used:
                    await self.lane.turn()

    def _leave(self, client: ConnectedClient) -> None:
        """The TCP connection of `client` has ended."""
        client.detach()
        if not client.link.is_restorable or self._is_stopping:
            self._release(client)
            return
        self._peer_log.info("client_broken peer=%s principal=%s", client.peer, client.principal)
        self.full.add(client.connection_id)
        self._note(ContextBroken(client.connection_id, client.link.retained.byte_count))

    def _release(self, client: ConnectedClient) -> None:
        if self._clients.pop(client.connection_id, None) is None:
            return
        client.intake.end()
        self.full.discard(client.connection_id)
        self._tell_all(ConnectionLost(client.connection_id))
        self._note(ContextClosed(client.connection_id))

    def _note(self, *events: ContextEvent) -> ContextEffect | None:
        """Step the contexts, release those that nobody may restore; return any other effect."""
        clock, answer = self._host.clock, None
        for effect in self._contexts.step(events, clock.now()):
            if isinstance(effect, ReleaseContext):
                client = self._clients.get(effect.connection_id)
                if client is None:  # its time was up in the moment in which it was given up
                    continue
                self._peer_log.info("client_released peer=%s reason=%s", client.peer, effect.reason)
                self.end(client, effect.reason)
            else:
                answer = effect
        if self._host.inspect is not None:
            self._host.inspect(self._contexts)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (deadline := self._contexts.deadline) is not None:
            seconds = max(deadline - clock.now(), TIMER_SECONDS_MIN)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._note)
        return answer

    # What takes time

    async def _drain(self, client: ConnectedClient) -> None:
        connection = client.connection
        assert connection is not None
        await connection.drain()
        await self.throttle.wait_to_send(client)
        if client.connection is not connection:
            return
        client.draining = None
        self.full.discard(client.connection_id)
        if client.connection_id in self._clients:
            self._tell_all(ConnectionDrained(client.connection_id))
