"""The two ports of a storage node: one for servers, one for tools.

Owns connections and which peers may speak on them. Decides nothing about requests: that is
`drain.py`, `partition_replica.py` and `administration.py`. Requests of servers go to the queues of
their partitions; those of tools are carried out in `administrator_shell.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
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
from waltz.storage.partition_queue_shell import PartitionQueue, PartitionRequest, StoragePeer
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


class StoragePorts:
    """Serves the connections of both ports."""

    def __init__(
        self,
        queues: Mapping[PartitionId, PartitionQueue],
        administer: Callable[[AdminMessage], Awaitable[AdminMessage]],
        far_sessions: FarSessions,
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
        peer = StoragePeer(connection, Link(codec, STORAGE_SERVER_GREETING, opens=True))
        return self._serve(peer, self._receive)

    def serve_admin(self, connection: Connection) -> Awaitable[None]:
        peer = StoragePeer(connection, Link(ADMIN_CODEC, ADMIN_SERVER_GREETING, opens=True))
        return self._serve(peer, self._receive_admin)

    async def _serve(
        self, peer: StoragePeer, receive: Callable[[StoragePeer, Message], Awaitable[None]]
    ) -> None:
        connection, link = peer.connection, peer.link
        seconds = self._handshake_seconds
        self._peers[peer] = None
        try:
            connection.write(link.hello())
            async with asyncio.timeout(seconds) as patience:
                while not peer.is_gone:
                    was_opened = peer.is_opened
                    if not (data := await connection.read(link.frames.wanted_bytes)):
                        break
                    connection.note_held(link.frames.unfinished_bytes + len(data))
                    for message in link.receive(data):
                        if not peer.is_gone:
                            await receive(peer, message)
                    connection.note_held(link.frames.unfinished_bytes)
                    if peer.is_opened and not was_opened:
                        patience.reschedule(None)
                    await connection.drain()
        except TimeoutError:
            self._peer_log.warning(
                "connection_refused peer=%s error=no Hello and open request in %g s",
                peer.connection.peer, seconds,
            )  # fmt: skip
        except RemoteProtocolError as error:
            self._peer_log.warning(
                "connection_refused peer=%s error=%s", peer.connection.peer, error
            )
        finally:
            peer.is_gone = True
            self._peers.pop(peer, None)

    async def _receive(self, peer: StoragePeer, message: Message) -> None:
        assert isinstance(message, StorageMessage)
        if type(message) is OpenRequest:
            refusal = await self._refusal_to_open(peer, message)
            if refusal is None:
                peer.send([SuccessResponse(*NOBODY)])
            else:
                peer.send([FailureResponse(*NOBODY, error_text(refusal), ())])
            peer.is_gone = refusal is not None
            return
        if self.is_stopping:
            return  # the connection ends without an answer: the outcome is unknown
        queue = self._queues.get(message.partition_id)
        if not peer.is_opened:
            peer.send([failure(message, StorageError(NOT_OPENED))])
        elif queue is None:
            peer.send([failure(message, not_assigned(message.partition_id))])
        else:
            try:
                if message.session_id > queue.partition.announced_session_id:
                    await self._announce(queue, message.session_id)
            except StorageError as error:
                self._peer_log.warning(
                    "session_refused peer=%s error=%s", peer.connection.peer, error
                )
                peer.send([failure(message, error)])
            else:
                await queue.put(PartitionRequest(peer, message))

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
