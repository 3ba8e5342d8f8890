"""The two ports of a storage node: one for servers, one for tools.

Owns connections and which peers may speak on them; what a peer may ask for is asked of the policy
(`gate_shell.py`). Decides nothing about requests: that is
`drain.py`, `partition_replica.py` and `administration.py`. Requests of servers go to the queues of
their partitions; those of tools are carried out in `administrator_shell.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from waltz.errors import (
    RemoteProtocolError,
    StorageError,
)
from waltz.host import Connection
from waltz.peer_log import PeerLog
from waltz.storage.administration import admin_failure, check_count, check_key
from waltz.storage.directory.partition_promises import not_assigned
from waltz.storage.drain import REFUSALS, error_text, failure
from waltz.storage.far_sessions_shell import FarSessions
from waltz.storage.gate_shell import Gate
from waltz.storage.partition_queue_shell import PartitionQueue, StoragePeer
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    ADMIN_SERVER_GREETING,
    AdminFailureResponse,
    AdminMessage,
    AdminOpenRequest,
    AdminSuccessResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    STORAGE_SERVER_GREETING,
    FailureResponse,
    OpenRequest,
    StorageMessage,
    SuccessResponse,
)

log = logging.getLogger(__name__)

NOBODY: Final = (NO_SESSION, -1, PartitionId(-1))
"""Session, sequence number and partition in every answer to an open request."""

NOT_OPENED: Final = "an open request must come first on a connection"


Take = Callable[[StoragePeer, Sequence[Message], int], int]
"""Takes messages from an index on; returns the index of the first that has to wait for something,
or the number of all."""

Lets = Callable[[StoragePeer, Sequence[Message]], bool]
"""Returns whether messages may be taken; else the connection of the peer has ended."""

Receive = Callable[[StoragePeer, Message], Awaitable[None]]


class _Arrivals:
    """The messages that arrive from one peer: taken at once, or left to the task, in order."""

    def __init__(self, peer: StoragePeer, take: Take, lets: Lets) -> None:
        self._peer = peer
        self._lets = lets
        self._take = take
        self._left: Sequence[Message] = ()
        """The messages of the newest read, if any of them is left to the task."""
        self._position = 0
        """Index of the first of these that is left; while there is one the peer is held."""
        self._unfinished_bytes = 0
        """The bytes of a message that is not whole yet, as the connection was told last."""
        self._fault: RemoteProtocolError | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Resolved once something is left to the task, or nothing more will be."""

    def take(self, data: bytes) -> None:
        """Take what has arrived; no bytes are the end of the connection."""
        peer = self._peer
        if peer.is_gone or not data:
            self._end()
            return
        frames = peer.link.frames
        try:
            messages = peer.link.receive(data)
        except RemoteProtocolError as error:
            self._fault = error
            self._end()
            return
        if frames.unfinished_bytes != self._unfinished_bytes:
            self._unfinished_bytes = frames.unfinished_bytes
            peer.connection.note_held(frames.unfinished_bytes)
        if not self._lets(peer, messages):
            self._end()
            return
        position = self._take(peer, messages, 0)
        if position < len(messages):
            peer.hold()
            self._left, self._position = messages, position
            peer.connection.note_held(frames.unfinished_bytes + len(data))
            self._wake()

    async def next_left(self) -> Message | None:
        """Return the message that waits for the task, once there is one; None: the connection has
        ended. Raises RemoteProtocolError: what arrived is no message."""
        while self._position == len(self._left):
            if self._fault is not None:
                raise self._fault
            if self._peer.is_gone:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return None if self._peer.is_gone else self._left[self._position]

    def go_on(self) -> None:
        """Take the messages after the one that the task has handled; then read on."""
        peer = self._peer
        if peer.is_gone:
            return
        self._position = self._take(peer, self._left, self._position + 1)
        if self._position == len(self._left):
            self._left, self._position = (), 0
            peer.connection.note_held(peer.link.frames.unfinished_bytes)
            peer.release()

    def _end(self) -> None:
        self._peer.is_gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StoragePorts:
    """Serves the connections of both ports."""

    def __init__(
        self,
        queues: Mapping[PartitionId, PartitionQueue],
        administer: Callable[[AdminMessage], Awaitable[AdminMessage]],
        far_sessions: FarSessions,
        gate: Gate,
        partition_count: Callable[[], int],
        look: Callable[[], Awaitable[None]],
        *,
        cluster_key: UUID,
        handshake_seconds: float,
        protocol_version_max: int,
    ) -> None:
        """`queues` is the node's own mapping, which changes; `administer` carries out a request of
        a tool and returns the answer, or raises REFUSALS; `partition_count` returns the
        partitions of the cluster, as far as the node knows; `look` asks the coordinator for that
        number."""
        self.is_stopping = False
        """Whether requests of servers are dropped, for the node stops."""
        self._queues = queues
        self._administer = administer
        self._far_sessions = far_sessions
        self._gate = gate
        self._partition_count = partition_count
        self._look = look
        self._cluster_key = cluster_key
        self._handshake_seconds = handshake_seconds
        self._protocol_version_max = protocol_version_max
        self._peers: dict[StoragePeer, None] = {}
        self._peer_log = PeerLog(log, asyncio.get_running_loop)

    def close_connections(self) -> None:
        for peer in list(self._peers):
            peer.connection.close()

    def serve_data(self, connection: Connection) -> Awaitable[None]:
        codec = STORAGE_CODEC.up_to(self._protocol_version_max)
        link = Link(codec, STORAGE_SERVER_GREETING, opens=True)
        return self._serve(StoragePeer(connection, link), self._take, self._receive)

    def serve_admin(self, connection: Connection) -> Awaitable[None]:
        link = Link(ADMIN_CODEC, ADMIN_SERVER_GREETING, opens=True)
        return self._serve(StoragePeer(connection, link), _take_none, self._receive_admin)

    async def _serve(self, peer: StoragePeer, take: Take, receive: Receive) -> None:
        """Serve a peer until its connection ends. `take` is called with what each read brings; what
        it leaves waits for something, and so does the peer while this task handles it."""
        arrivals = _Arrivals(peer, take, self._gate.lets)
        self._peers[peer] = None
        try:
            peer.connection.write(peer.link.hello())
            peer.connection.hand_over(arrivals.take)
            async with asyncio.timeout(self._handshake_seconds) as patience:
                while (message := await arrivals.next_left()) is not None:
                    was_opened = peer.is_opened
                    await receive(peer, message)
                    if peer.is_opened and not was_opened:
                        patience.reschedule(None)
                    arrivals.go_on()
        except TimeoutError:
            self._peer_log.warning(
                "connection_refused peer=%s error=no Hello and open request in %g s",
                peer.connection.peer, self._handshake_seconds,
            )  # fmt: skip
        except RemoteProtocolError as error:
            self._peer_log.warning(
                "connection_refused peer=%s error=%s", peer.connection.peer, error
            )
        finally:
            peer.is_gone = True
            self._peers.pop(peer, None)

    def _take(self, peer: StoragePeer, messages: Sequence[Message], position: int) -> int:
        """Put requests into the queues of their partitions, as far as nothing has to be asked
        first."""
        if not peer.is_opened:
            return position
        if self.is_stopping:
            return len(messages)  # the connection ends without an answer: the outcome is unknown
        requests: dict[PartitionQueue, list[StorageMessage]] = {}
        for message in messages[position:]:
            assert isinstance(message, StorageMessage)
            queue = self._queues.get(message.partition_id)
            if type(message) is OpenRequest:
                break
            if queue is None:
                peer.send([failure(message, not_assigned(message.partition_id))])
            elif message.session_id > queue.partition.announced_session_id:
                break
            else:
                requests.setdefault(queue, []).append(message)
            position += 1
        for queue, its_requests in requests.items():
            queue.put(peer, its_requests)
        return position

    async def _receive(self, peer: StoragePeer, message: Message) -> None:
        """Open the connection, or admit a session that is new to the partition."""
        assert isinstance(message, StorageMessage)
        if type(message) is OpenRequest:
            refusal = await self._refusal_to_open(peer, message)
            if refusal is None:
                peer.send([SuccessResponse(*NOBODY)])
            else:
                peer.send([FailureResponse(*NOBODY, error_text(refusal), ())])
            peer.is_gone = refusal is not None
            return
        if not peer.is_opened:
            peer.send([failure(message, StorageError(NOT_OPENED))])
            return
        queue = self._queues.get(message.partition_id)
        if queue is None:
            return  # the node has stopped meanwhile
        try:
            await self._announce(queue, message.session_id)
        except StorageError as error:
            self._peer_log.warning("session_refused peer=%s error=%s", peer.connection.peer, error)
            peer.send([failure(message, error)])
        else:
            queue.put(peer, [message])

    async def _announce(self, queue: PartitionQueue, session_id: SessionId) -> None:
        """Let a session that is new to the partition fence out all lower ones. Raises StorageError:
        the coordinator gave no server this session."""
        partition = queue.partition
        await self._far_sessions.check(
            partition.partition_id, session_id, partition.highest_session
        )
        if queue.failed is None:
            partition.announce(session_id)

    async def _receive_admin(self, peer: StoragePeer, message: Message) -> None:
        assert isinstance(message, AdminMessage)
        if isinstance(message, AdminOpenRequest):
            refusal = await self._refusal_to_open(peer, message)
            if refusal is None:
                peer.send([AdminSuccessResponse(-1)])
            else:
                peer.send([AdminFailureResponse(-1, error_text(refusal), ())])
            peer.is_gone = refusal is not None
            return
        try:
            if not peer.is_opened:
                raise StorageError(NOT_OPENED)
            peer.send([await self._administer(message)])
        except REFUSALS as error:
            peer.send([admin_failure(message, error)])

    async def _refusal_to_open(
        self, peer: StoragePeer, message: OpenRequest | AdminOpenRequest
    ) -> StorageError | None:
        """Return why an open request is refused; None: it is accepted. Unlike the original's node,
        this one insists on an open request.

        A peer of the cluster that speaks of more partitions may know that some were added.
        """
        try:
            check_key(message, self._cluster_key)
            if message.partition_count > self._partition_count():
                await self._look()
            check_count(message, self._partition_count())
        except StorageError as error:
            self._peer_log.warning("open_refused peer=%s error=%s", peer.connection.peer, error)
            return error
        peer.is_opened = True
        peer.link.opened()
        return None


def _take_none(_: StoragePeer, __: Sequence[Message], position: int) -> int:
    """Leave all requests of tools to the task of their connection."""
    return position
