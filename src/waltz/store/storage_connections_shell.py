"""Connections to storage nodes: one per node, shared by all partitions of a server (ST-43).

Owns sockets, sequence numbers, time-outs and the back-off between attempts. Must not know sessions:
a request is bytes with a number, and an answer belongs to its request. What was not answered when
a connection ends is unknown, and nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from waltz.cluster.store_params import StoreParams
from waltz.errors import (
    ConnectionLostError,
    OperationTimeoutError,
    ProtocolError,
    RemoteProtocolError,
    RemoteStorageError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Connection, Host
from waltz.limits import (
    HANDSHAKE_SECONDS_MAX,
    KEEP_ALIVE_SECONDS,
    OBSTACLE_SECONDS,
    RETRY_SECONDS_MIN,
    STORAGE_REQUEST_SECONDS_MAX,
)
from waltz.types import NO_SESSION, Address, PartitionId, ReplicaId
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message
from waltz.wire.storage_protocol import (
    ACCEPTED_DAMAGE_SINCE,
    CLIENT_NOTES_SINCE,
    HEADERS_SINCE,
    REFUSALS_SINCE,
    REPAIRS_SINCE,
    STORAGE_CLIENT_GREETING,
    STORAGE_CODEC,
    FailureResponse,
    OpenRequest,
    StorageMessage,
    SuccessResponse,
)

STORAGE_RECONNECT_SECONDS_MAX: Final = 1.0
"""The most between two attempts to reach a storage node that somebody waits for. One that is back
and not noticed is one that must not be missed: the next one lost takes the majority with it."""

STORAGE_ANSWER_SECONDS: Final = 1.0
"""A storage node that has answered so lately need not be asked whether it is reached."""


log = logging.getLogger(__name__)

MakeFrame: TypeAlias = Callable[[Link, int], bytes]
"""Makes the frame of a request for the link, once its sequence number is known."""

Done: TypeAlias = Callable[[StorageMessage | WaltzError], None]
"""Called once, later, with the answer or the error. A failure answer is a RemoteStorageError."""

NO_SEQUENCE: Final = -1
NO_PARTITION: Final = PartitionId(-1)


class StorageExchange:
    """One connection that has been opened: requests out, answers in."""

    def __init__(
        self, host: Host, replica_id: ReplicaId, connection: Connection, link: Link
    ) -> None:
        """`link` has agreed on a version with the other side."""
        version = link.version
        assert version is not None
        self.is_repairable = version >= REPAIRS_SINCE
        """Whether the other side has agreed to say what it has damaged and to take repairs."""
        self.is_tolerant = version >= ACCEPTED_DAMAGE_SINCE
        """Whether the other side can take part with records that every replica has lost."""
        self.says_refusal = version >= REFUSALS_SINCE
        """Whether the other side says why it would refuse an append."""
        self.gives_headers = version >= HEADERS_SINCE
        """Whether a list of headers alone costs the other side less than one of records."""
        self.notes_clients = version >= CLIENT_NOTES_SINCE
        """Whether the other side notes which clients have mounted a partition."""
        self.ended: str | None = None
        self._clock = host.clock
        self._replica_id = replica_id
        self._connection = connection
        self._link = link
        self._requests: dict[int, tuple[float, Done | None]] = {}
        """Deadline and listener per request, None once it has timed out: the late answer is
        then expected and dropped."""
        self._next_sequence_number = 0
        self._received_at = host.clock.now()
        self._has_written = True
        self._over = asyncio.Event()
        self._timeout: asyncio.TimerHandle | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        self._watch_idleness()

    @property
    def silent_seconds(self) -> float:
        """Seconds since something came over it, or it was opened."""
        return self._clock.now() - self._received_at

    def request(self, frame: MakeFrame, done: Done) -> None:
        """Send a request. Raises ConnectionLostError: there is no connection, nothing was sent."""
        if self.ended is not None:
            raise ConnectionLostError(self.ended)
        number = self._next_sequence_number
        self._next_sequence_number += 1
        data = frame(self._link, number)
        self._requests[number] = self._clock.now() + STORAGE_REQUEST_SECONDS_MAX, done
        if self._timeout is None:
            self._set_timeout(STORAGE_REQUEST_SECONDS_MAX)
        self._has_written = True
        self._connection.write(data)

    def flush(self) -> None:
        """Let the requests so far leave, before others have their turn."""
        self._connection.flush()

    async def serve(self) -> str:
        """Take answers until the connection ends; return why it has ended."""
        self._connection.hand_over(self._receive)
        try:
            return await self.over()
        finally:
            self.end("closed by this server")

    def _receive(self, data: bytes) -> None:
        if not data:
            self.end(f"connection to {self._replica_id} ended")
            return
        self._received_at = self._clock.now()
        try:
            for message in self._link.receive(data):
                assert isinstance(message, StorageMessage)
                number = message.sequence_number
                if number not in self._requests:
                    raise RemoteProtocolError(
                        f"an answer to request {number}, which is not outstanding; the next"
                        f" request will be {self._next_sequence_number}"
                    )
                _, done = self._requests.pop(number)
                if done is None:
                    continue
                if isinstance(message, FailureResponse):
                    done(RemoteStorageError(message.message))
                else:
                    done(message)
        except RemoteProtocolError as error:
            self.end(f"{self._replica_id}: {error}")
        except BaseException:
            self.end("this server failed to take an answer")
            raise

    def end(self, reason: str) -> None:
        """Close the connection and fail all that is outstanding. Idempotent."""
        if self.ended is not None:
            return
        self.ended = reason
        for timer in (self._timeout, self._keep_alive):
            if timer is not None:
                timer.cancel()
        self._connection.close()
        requests, self._requests = self._requests, {}
        for _, done in requests.values():
            if done is not None:
                done(ConnectionLostError(reason))
        self._over.set()

    async def over(self) -> str:
        """Return why the connection has ended, once it has."""
        await self._over.wait()
        assert self.ended is not None
        return self.ended

    def _set_timeout(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Fail what has waited too long; end a connection over which nothing comes at all."""
        now = self._clock.now()
        self._timeout = None
        for number, (deadline, done) in list(self._requests.items()):
            if deadline > now:
                # All wait equally long, so the others are younger.
                self._set_timeout(deadline - now)
                break
            if done is not None:
                self._requests[number] = deadline, None
                waited = f"{STORAGE_REQUEST_SECONDS_MAX:g} s"
                done(OperationTimeoutError(f"no answer from {self._connection.peer} in {waited}"))
                if now - self._received_at >= STORAGE_REQUEST_SECONDS_MAX:
                    self.end(f"{self._connection.peer} has fallen silent")
                    return

    def _watch_idleness(self) -> None:
        if not self._has_written:
            self._connection.write(self._link.keep_alive())
        self._has_written = False
        loop = asyncio.get_running_loop()
        self._keep_alive = loop.call_later(KEEP_ALIVE_SECONDS, self._watch_idleness)


class StorageConnection:
    """The connection to one storage node, made again after it was lost as long as somebody waits
    for it: a node that was taken out of the cluster is not dialled for ever."""

    def __init__(
        self, host: Host, replica_id: ReplicaId, params: StoreParams, codec: Codec
    ) -> None:
        self._host = host
        self._codec = codec
        self._replica_id = replica_id
        self._open_request = OpenRequest(
            NO_SESSION, NO_SEQUENCE, NO_PARTITION, params.cluster_key, params.partition_count
        )
        self._exchange: StorageExchange | None = None
        self._connected = asyncio.Event()
        self._waiting_count = 0
        self._wanted = asyncio.Event()
        """Set while somebody waits for the connection."""
        self._retry_seconds = 0.0
        self._logged: str | None = None
        self._log_again_at = 0.0
        self._trial: asyncio.Task[bool] | None = None
        self._task = asyncio.create_task(self._run(), name=f"storage connection {replica_id}")

    @property
    def is_connected(self) -> bool:
        return self._exchange is not None

    async def connected(self) -> StorageExchange:
        """Return the connection as soon as there is one that both sides have agreed to use."""
        self._waiting_count += 1
        self._wanted.set()
        try:
            while self._exchange is None:
                await self._connected.wait()
            return self._exchange
        finally:
            self._waiting_count -= 1
            if not self._waiting_count:
                self._wanted.clear()

    async def answers(self) -> bool:
        """Whether the node has answered just now, or answers a handshake of its own: a connection
        that nothing has come over for a while may lead nowhere. However many ask, one handshake is
        under way at a time."""
        exchange = self._exchange
        if exchange is not None and exchange.silent_seconds <= STORAGE_ANSWER_SECONDS:
            return True
        if self._trial is None or self._trial.done():
            self._trial = asyncio.create_task(self._try_out())
        return await asyncio.shield(self._trial)

    async def _try_out(self) -> bool:
        try:
            exchange = await self._shake_hands()
        except (UnavailableError, ProtocolError, RemoteStorageError, ValueError):
            return False
        exchange.end("the connection was opened on trial")
        return True

    def grow(self, partition_count: int) -> None:
        """Name `partition_count` when the connection is made the next time: the node then learns
        of new partitions if it has not yet."""
        self._open_request = replace(self._open_request, partition_count=partition_count)

    async def close(self) -> None:
        tasks = [each for each in (self._task, self._trial) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                self._exchange = await self._connect()
                self._connected.set()
                reason = await self._exchange.serve()
            except (UnavailableError, ProtocolError, RemoteStorageError) as error:
                reason = str(error)
            except ValueError as error:
                reason = f"{self._replica_id} cannot be connected to: {error}"
            finally:
                self._exchange = None
                self._connected.clear()
            self._retry_seconds = min(
                max(2 * self._retry_seconds, RETRY_SECONDS_MIN), STORAGE_RECONNECT_SECONDS_MAX
            )
            self._log_once(reason)
            await asyncio.sleep(
                self._host.random.uniform(self._retry_seconds / 2, self._retry_seconds)
            )

    def _log_once(self, reason: str) -> None:
        """Say what is new at once, and the rest now and then: a node may be away for days."""
        now = self._host.clock.now()
        if reason != self._logged or now >= self._log_again_at:
            self._logged, self._log_again_at = reason, now + OBSTACLE_SECONDS
            log.info("storage_disconnected replica=%s reason=%s", self._replica_id, reason)

    async def _connect(self) -> StorageExchange:
        exchange = await self._shake_hands()
        log.info("storage_connected replica=%s", self._replica_id)
        self._retry_seconds = 0.0
        self._logged = None
        return exchange

    async def _shake_hands(self) -> StorageExchange:
        connection = await self._host.network.connect(Address.parse(self._replica_id))
        link = Link(self._codec, STORAGE_CLIENT_GREETING)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await self._open(connection, link)
        except TimeoutError:
            connection.close()
            raise UnavailableError(
                f"storage node {self._replica_id} did not complete the handshake in"
                f" {HANDSHAKE_SECONDS_MAX:g} s"
            ) from None
        except BaseException:
            connection.close()
            raise
        return StorageExchange(self._host, self._replica_id, connection, link)

    async def _open(self, connection: Connection, link: Link) -> None:
        """Greet, and show that both belong to one cluster.

        Raises ConnectionLostError, RemoteProtocolError. RemoteStorageError: it belongs to another.
        """
        connection.write(link.hello())
        while link.version is None:
            await self._receive(connection, link)
        connection.write(link.encode(self._open_request))
        messages: list[Message] = []
        while not messages:
            messages = await self._receive(connection, link)
        match messages:
            case [SuccessResponse()]:
                return
            case [FailureResponse(message=text)]:
                raise RemoteStorageError(
                    f"storage node {self._replica_id} refused the open request: {text}"
                )
            case _:
                raise RemoteProtocolError(
                    f"storage node {self._replica_id} answered an open request with {messages}"
                )

    async def _receive(self, connection: Connection, link: Link) -> list[Message]:
        data = await connection.read()
        if not data:
            trouble = connection.trouble and f": {connection.trouble}"
            raise ConnectionLostError(
                f"storage node {self._replica_id} ended the connection while it was opened{trouble}"
            )
        return link.receive(data)


class StorageConnections:
    """All connections of one server process to storage nodes, each made when first asked for."""

    def __init__(self, host: Host, params: StoreParams, codec: Codec = STORAGE_CODEC) -> None:
        """`codec`: with the versions of the storage protocol that are offered to the nodes."""
        self._host = host
        self._params = params
        self._codec = codec
        self._connections: dict[ReplicaId, StorageConnection] = {}

    def to(self, replica_id: ReplicaId) -> StorageConnection:
        connection = self._connections.get(replica_id)
        if connection is None:
            connection = StorageConnection(self._host, replica_id, self._params, self._codec)
            self._connections[replica_id] = connection
        return connection

    def grow(self, partition_count: int) -> None:
        """Note the number of partitions that the cluster has now."""
        if partition_count != self._params.partition_count:
            self._params = replace(self._params, partition_count=partition_count)
            for connection in self._connections.values():
                connection.grow(partition_count)

    def connectivity(self) -> tuple[tuple[ReplicaId, bool], ...]:
        """Whether each storage node that was ever asked for is connected now, sorted."""
        return tuple(
            (replica_id, connection.is_connected)
            for replica_id, connection in sorted(self._connections.items())
        )

    async def close(self) -> None:
        """End all connections, in order."""
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()
