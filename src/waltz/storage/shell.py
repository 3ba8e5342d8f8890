"""A storage node: its directory, its two ports, and one task per partition.

Owns connections and who may speak on them. Decides nothing about requests: that is `drain.py`,
`partition.py` and `administration.py`; what waits for a partition waits in `partition_queue`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from waltz.errors import (
    ConfigurationError,
    RemoteProtocolError,
    StorageError,
    WaltzError,
)
from waltz.host import Connection, Host, Listener
from waltz.limits import (
    HANDSHAKE_SECONDS_MAX,
    SEGMENT_BYTES_THRESHOLD,
)
from waltz.storage.administration import (
    admin_failure,
    answer_of_node,
    answer_of_partition,
    check_cluster,
    check_partition_ids,
)
from waltz.storage.control_file import ControlFile, open_control_file
from waltz.storage.drain import REFUSALS, error_text, failure
from waltz.storage.partition import StoragePartition, not_assigned
from waltz.storage.partition_queue.shell import PartitionQueue, PartitionRequest, Peer
from waltz.storage.recovery import TornTail
from waltz.types import NO_SESSION, Address, PartitionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    ADMIN_SERVER_GREETING,
    AdminFailureResponse,
    AdminLastSessionInfoRequest,
    AdminMessage,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    MetricsRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
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
"""What the head of every answer to an open request says."""

NOT_OPENED: Final = "an open request must come first on a connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    directory: str
    """Exists, and is this node's alone."""
    cluster_key: UUID
    partition_count: int
    """The whole cluster's, not the node's."""
    data_address: Address
    admin_address: Address
    segment_bytes_threshold: int = SEGMENT_BYTES_THRESHOLD
    assigned_partitions: frozenset[PartitionId] | None = None
    """Taken when the directory is fresh; None: none, they are assigned by the admin port."""


class StorageNode:
    """The replicas of this node's partitions, served on two ports."""

    def __init__(self, host: Host, config: StorageConfig) -> None:
        self._host = host
        self._config = config
        self._control_file: ControlFile | None = None
        self._queues: dict[PartitionId, PartitionQueue] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[Listener] = []
        self._peers: dict[Peer, None] = {}
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def data_address(self) -> Address:
        """Where servers connect, with the real port."""
        return self._listeners[0].address

    @property
    def admin_address(self) -> Address:
        """Where tools connect, with the real port."""
        return self._listeners[1].address

    async def start(self) -> None:
        """Open the directory and serve both ports.

        Raises ConfigurationError and its kin, with nothing touched: no such directory, in use,
        another cluster's, or a port is taken. A damaged partition is no reason not to start.
        """
        try:
            for partition, torn in await self._host.workers.run_blocking(self._open_directory):
                self._add_queue(partition)
                _log_opened(partition, torn)
            network, config = self._host.network, self._config
            self._listeners.append(await network.listen(config.data_address, self._serve_data))
            self._listeners.append(await network.listen(config.admin_address, self._serve_admin))
        except OSError as error:
            await self.stop()
            raise ConfigurationError(
                f"storage directory {self._config.directory}: {error}"
            ) from error
        except WaltzError:
            await self.stop()
            raise
        log.info("storage_started directory=%s data=%s", config.directory, self.data_address)

    async def run(self) -> None:
        """Return once the node is stopped. Raises what ended it, if it ended by itself."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """End the connections, finish what was received, bring the indexes up to date, release the
        directory. Idempotent."""
        for listener in self._listeners:
            await listener.close()
        for peer in list(self._peers):
            peer.connection.close()
        for queue, task in zip(self._queues.values(), self._tasks, strict=True):
            if not task.done():
                try:
                    await queue.stop()
                except WaltzError as error:
                    log.warning("close_failed error=%s", error)
                await task
        self._queues.clear()
        self._tasks.clear()
        if self._control_file is not None:
            self._control_file.close()
            self._control_file = None
        self._ended.set()

    # The directory

    def _open_directory(self) -> list[tuple[StoragePartition, TornTail | None]]:
        config = self._config
        self._control_file = open_control_file(
            self._host.disk,
            config.directory,
            cluster_key=config.cluster_key,
            partition_count=config.partition_count,
            assigned=config.assigned_partitions or frozenset(),
            wall_milliseconds=self._host.clock.wall_milliseconds(),
        )
        opened = []
        for number in range(config.partition_count):
            partition = self._partition(PartitionId(number))
            torn = partition.open()
            if partition.damage is not None or partition.info.is_assigned:
                opened.append((partition, torn))
        return opened

    def _partition(self, partition_id: PartitionId) -> StoragePartition:
        assert self._control_file is not None
        return StoragePartition(
            self._host.disk,
            self._config.directory,
            self._control_file,
            partition_id,
            cluster_key=self._config.cluster_key,
            segment_bytes_threshold=self._config.segment_bytes_threshold,
            wall_milliseconds=self._host.clock.wall_milliseconds,
        )

    def _add_queue(self, partition: StoragePartition) -> PartitionQueue:
        queue = PartitionQueue(self._host, partition)
        self._queues[partition.partition_id] = queue
        self._tasks.append(asyncio.create_task(self._run_queue(queue)))
        return queue

    async def _run_queue(self, queue: PartitionQueue) -> None:
        try:
            await queue.run()
        except Exception as error:
            log.exception("partition_ended partition=%d", queue.partition.partition_id)
            self._error = error
            self._ended.set()

    # The two ports

    async def _serve_data(self, connection: Connection) -> None:
        peer = Peer(connection, Link(STORAGE_CODEC, STORAGE_SERVER_GREETING))
        await self._serve(peer, self._receive)

    async def _serve_admin(self, connection: Connection) -> None:
        peer = Peer(connection, Link(ADMIN_CODEC, ADMIN_SERVER_GREETING))
        await self._serve(peer, self._receive_admin)

    async def _serve(self, peer: Peer, receive: Callable[[Peer, Message], Awaitable[None]]) -> None:
        self._peers[peer] = None
        try:
            peer.connection.write(peer.link.hello())
            while not peer.is_gone and (data := await _read(peer)):
                for message in peer.link.receive(data):
                    if not peer.is_gone:
                        await receive(peer, message)
                await peer.connection.drain()
        except RemoteProtocolError as error:
            log.warning("connection_refused peer=%s error=%s", peer.connection.peer, error)
        finally:
            peer.is_gone = True
            self._peers.pop(peer, None)

    async def _receive(self, peer: Peer, message: Message) -> None:
        assert isinstance(message, StorageMessage)
        if isinstance(message, OpenRequest):
            refusal = self._refusal_to_open(peer, message)
            if refusal is None:
                peer.send([SuccessResponse(*NOBODY)])
            else:
                peer.send([FailureResponse(*NOBODY, error_text(refusal), ())])
            peer.is_gone = refusal is not None
            return
        queue = self._queues.get(message.partition_id)
        if not peer.is_opened:
            peer.send([failure(message, StorageError(NOT_OPENED))])
        elif queue is None:
            peer.send([failure(message, not_assigned(message.partition_id))])
        else:
            queue.partition.announce(message.session_id)
            await queue.put(PartitionRequest(peer, message))

    async def _receive_admin(self, peer: Peer, message: Message) -> None:
        assert isinstance(message, AdminMessage)
        if isinstance(message, AdminOpenRequest):
            refusal = self._refusal_to_open(peer, message)
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

    def _refusal_to_open(
        self, peer: Peer, message: OpenRequest | AdminOpenRequest
    ) -> StorageError | None:
        """Judge an open request. Unlike the original's node, this one insists on it."""
        try:
            check_cluster(
                message, cluster_key=self._config.cluster_key, count=self._config.partition_count
            )
        except StorageError as error:
            log.warning("open_refused peer=%s error=%s", peer.connection.peer, error)
            return error
        peer.is_opened = True
        return None

    async def _administer(self, message: AdminMessage) -> AdminMessage:
        match message:
            case PartitionAvailableRequest(_, partition_ids, available):
                for queue in [self._assigned_queue(number) for number in partition_ids]:
                    torn = await queue.command(partial(queue.partition.set_available, available))
                    _log_opened(queue.partition, torn)
            case PartitionAssignmentRequest(_, partition_ids, True, _):
                check_partition_ids(partition_ids, self._config.partition_count)
                for partition_id in partition_ids:
                    queue = self._queues.get(partition_id) or await self._new_queue(partition_id)
                    torn = await queue.command(queue.partition.assign)
                    _log_opened(queue.partition, torn)
            case PartitionAssignmentRequest(_, partition_ids, False, delete_files):
                for queue in [self._assigned_queue(number) for number in partition_ids]:
                    await queue.command(
                        partial(queue.partition.unassign, delete_files=delete_files)
                    )
                    log.info("partition_given_up partition=%d", queue.partition.partition_id)
            case AdminRecordListRequest() | AdminLastSessionInfoRequest():
                queue = self._assigned_queue(message.partition_id)
                return await queue.command(partial(answer_of_partition, queue.partition, message))
            case MetricsRequest() | AssignedPartitionStatusRequest():
                partitions = [self._queues[number].partition for number in sorted(self._queues)]
                return answer_of_node(partitions, message)
            case _:
                raise StorageError(f"not a request to a node: {type(message).__name__}")
        return AdminSuccessResponse(message.sequence_number)

    def _assigned_queue(self, partition_id: PartitionId) -> PartitionQueue:
        """Raises NotFoundError."""
        check_partition_ids([partition_id], self._config.partition_count)
        queue = self._queues.get(partition_id)
        if queue is None:
            raise not_assigned(partition_id)
        return queue

    async def _new_queue(self, partition_id: PartitionId) -> PartitionQueue:
        partition = self._partition(partition_id)
        await self._host.workers.run_blocking(partition.open)
        return self._queues.get(partition_id) or self._add_queue(partition)


async def _read(peer: Peer) -> bytes:
    """Return what has arrived; nothing if the peer does not say who it is in time."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX if peer.link.version is None else None):
            return await peer.connection.read()
    except TimeoutError:
        return b""


def _log_opened(partition: StoragePartition, torn: TornTail | None) -> None:
    number = partition.partition_id
    if torn is not None:
        log.warning(
            "torn_tail_cut partition=%d path=%s next_transaction_id=%d offset=%d cut_bytes=%d",
            number, torn.path, torn.next_transaction_id, torn.offset, torn.cut_bytes,
        )  # fmt: skip
    if partition.damage is not None:
        log.error("partition_damaged partition=%d error=%s", number, partition.damage)
    else:
        log.info("partition_open partition=%d next=%d", number, partition.next_transaction_id)
