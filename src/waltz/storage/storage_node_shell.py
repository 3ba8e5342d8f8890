"""A storage node: its directory, its two ports, and one task per partition.

Owns connections and which peers may speak on them. Decides nothing about requests: that is
`drain.py`, `partition_replica.py` and `administration.py`. Requests wait in
`partition_queue_shell.py`; those of tools are carried out in `administrator_shell.py`; the node's
own work is in `upkeep_shell.py`.
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
    SCRUB_BYTES_PER_SECOND,
    SCRUB_INTERVAL_SECONDS,
    SEGMENT_BYTES_THRESHOLD,
    SEGMENTS_OPEN_MAX,
)
from waltz.peer_log import PeerLog
from waltz.storage.administration import admin_failure, check_count, check_key
from waltz.storage.administrator_shell import Administrator
from waltz.storage.directory.control_file import ControlFile, open_control_file
from waltz.storage.directory.space import FREE_MINIMUM, FreeMinimum
from waltz.storage.directory_growth_shell import Growth, ReadCount
from waltz.storage.drain import REFUSALS, error_text, failure
from waltz.storage.far_sessions_shell import FarSessions, LatestSession
from waltz.storage.log.segment_recovery import TornTail
from waltz.storage.partition_queue_shell import PartitionQueue, PartitionRequest, StoragePeer
from waltz.storage.partition_replica import StoragePartition, not_assigned
from waltz.storage.scrubber import ScrubCounters
from waltz.storage.storage_metrics import NodeStage, NodeState
from waltz.storage.upkeep_shell import Upkeep, log_opened
from waltz.types import NO_SESSION, NOTHING, Address, PartitionId, SessionId
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

SCRUB_START_SECONDS: Final = 60.0
"""From the start of a node to its first pass: meanwhile its servers recover with it."""


log = logging.getLogger(__name__)

NOBODY: Final = (NO_SESSION, -1, PartitionId(-1))
"""Session, sequence number and partition in every answer to an open request."""

NOT_OPENED: Final = "an open request must come first on a connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    directory: str
    """An existing directory, used by this node only."""
    cluster_key: UUID
    partition_count: int
    """The partitions of the whole cluster when the node starts; a directory with fewer grows."""
    data_address: Address
    admin_address: Address
    segment_bytes_threshold: int = SEGMENT_BYTES_THRESHOLD
    segments_open_max: int = SEGMENTS_OPEN_MAX
    assigned_partitions: frozenset[PartitionId] | None = None
    """Partitions of a fresh directory; None: none, they are assigned through the admin port."""
    disk_free_minimum: FreeMinimum = FREE_MINIMUM
    """With less free space than this, appends are refused."""
    scrub_bytes_per_second: int = SCRUB_BYTES_PER_SECOND
    """The rate at which records are read again to find damage; 0: not at all."""
    scrub_interval_seconds: float = SCRUB_INTERVAL_SECONDS
    """From the end of a pass over all records to the next pass; `scrub_start_seconds` is from the
    start of the node to the first pass."""
    scrub_start_seconds: float = SCRUB_START_SECONDS
    handshake_seconds: float | None = None
    """Time limit for a peer to open its connection; None: `limits.HANDSHAKE_SECONDS_MAX`."""
    protocol_version_max: int = STORAGE_CODEC.versions[-1]
    """The latest version of the storage protocol that is offered to servers."""
    ends_with_partition: bool = False
    """Whether a partition that fails ends the node, so that tests see every bug."""
    register: Callable[[UUID], Awaitable[None]] | None = None
    """Called with the directory's ID before its partitions are touched; may raise
    ForeignDirectoryError."""
    latest_session: LatestSession | None = None
    """Asks the coordinator when a server comes with a session above the known ones; None: all
    sessions are believed."""
    read_partition_count: ReadCount | None = None
    """Asks the coordinator when a peer speaks of more partitions than the node knows; None: the
    number never changes."""


class StorageNode:
    """The replicas of this node's partitions, served on two ports."""

    def __init__(self, host: Host, config: StorageConfig) -> None:
        self._host = host
        self._config = config
        self._control_file: ControlFile | None = None
        self._queues: dict[PartitionId, PartitionQueue] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self._peers: dict[StoragePeer, None] = {}
        self._growth: Growth | None = None
        self._administrator = Administrator(
            self._queues, lambda: self.partition_count, self._new_queue, self.state, self._look
        )
        self._far_sessions = FarSessions(host.clock, config.latest_session)
        self._stage = NodeStage.STARTING
        self._peer_log = PeerLog(log, asyncio.get_running_loop)
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    def state(self) -> NodeState:
        """Return the state of the node and its partitions, without waiting for anything."""
        scrubber = None if self._upkeep is None else self._upkeep.scrubber
        positions = {} if scrubber is None else scrubber.positions()
        states = [
            self._queues[number].state(scrub_position=positions.get(number, NOTHING))
            for number in sorted(self._queues)
        ]
        return NodeState(
            stage=self._stage,
            directory=self._config.directory,
            directory_id=None if self._control_file is None else self._control_file.directory_id,
            cluster_key=str(self._config.cluster_key),
            partition_count=self.partition_count,
            partitions=tuple(state for state in states if state is not None),
            space=None if self._upkeep is None else self._upkeep.space,
            scrub=ScrubCounters() if scrubber is None else scrubber.counters,
        )

    @property
    def partition_count(self) -> int:
        """The partitions of the whole cluster, as far as this node knows."""
        known = self._control_file
        return self._config.partition_count if known is None else known.partition_count

    @property
    def data_address(self) -> Address:
        """The address that servers connect to, with the real port."""
        return self._listeners[0].address

    @property
    def admin_address(self) -> Address:
        """The address that tools connect to, with the real port."""
        return self._listeners[1].address

    @property
    def directory_id(self) -> UUID:
        """The directory's identity, which moves with it; known while the node is started."""
        assert self._control_file is not None, "started"
        return self._control_file.directory_id

    async def start(self) -> None:
        """Open the directory, register it, and serve both ports.

        A node with a damaged partition starts as well. Raises ConfigurationError or one derived
        from it, with nothing touched: there is no such directory, it is in use or another cluster's
        or node's, or a port is taken. Raises what the registration raises.
        """
        try:
            await self._host.workers.run_blocking(self._open_directory)
            if self._config.register is not None:
                await self._config.register(self.directory_id)
            for partition, torn in await self._host.workers.run_blocking(self._open_partitions):
                self._add_queue(partition)
                log_opened(partition, torn)
            self._upkeep_task = asyncio.create_task(self._run_upkeep())
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
        self._stage = NodeStage.SERVING
        log.info("storage_started directory=%s data=%s", config.directory, self.data_address)

    async def run(self) -> None:
        """Return once the node is stopped. Raises the error that ended it, if there was one."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Accept and read no more, process and answer the requests received, bring the indexes up
        to date, end the connections, release the directory. Idempotent."""
        self._stage = NodeStage.STOPPING
        for listener in self._listeners:
            await listener.close()
        await self._stop_upkeep()
        stopping = zip(self._queues.values(), self._tasks, strict=True)
        await asyncio.gather(*(_stop_queue(queue, task) for queue, task in stopping))
        for peer in list(self._peers):
            peer.connection.close()
        self._queues.clear()
        self._tasks.clear()
        if self._growth is not None:
            await self._growth.stop()
        if self._control_file is not None:
            self._control_file.close()
            self._control_file = None
        self._ended.set()

    # The directory

    def _open_directory(self) -> None:
        config = self._config
        self._control_file = open_control_file(
            self._host.disk,
            config.directory,
            cluster_key=config.cluster_key,
            partition_count=config.partition_count,
            assigned=config.assigned_partitions or frozenset(),
            directory_id=self._host.random.uuid(),
            wall_milliseconds=self._host.clock.wall_milliseconds(),
        )
        for note in self._control_file.notes:
            log.warning("storage_directory note=%s", note)
        self._growth = Growth(
            self._host, self._control_file, self._queues.values, config.read_partition_count
        )
        self._upkeep = Upkeep(
            self._host,
            config.directory,
            self._queues,
            free_minimum=config.disk_free_minimum,
            scrub_bytes_per_second=config.scrub_bytes_per_second,
            scrub_interval_seconds=config.scrub_interval_seconds,
            scrub_start_seconds=config.scrub_start_seconds,
        )

    def _open_partitions(self) -> list[tuple[StoragePartition, TornTail | None]]:
        assert self._control_file is not None
        opened = []
        for partition_id in self._control_file.partition_ids:
            partition = self._partition(partition_id)
            opened.append((partition, partition.open()))
        return opened

    def _partition(self, partition_id: PartitionId) -> StoragePartition:
        assert self._control_file is not None
        assert self._upkeep is not None
        return StoragePartition(
            self._host.disk,
            self._config.directory,
            self._control_file,
            partition_id,
            cluster_key=self._config.cluster_key,
            segment_bytes_threshold=self._config.segment_bytes_threshold,
            segments_open_max=self._config.segments_open_max,
            wall_milliseconds=self._host.clock.wall_milliseconds,
            space=self._upkeep.space.account(),
        )

    def _add_queue(self, partition: StoragePartition) -> PartitionQueue:
        assert self._upkeep is not None
        queue = PartitionQueue(self._host, partition, self._upkeep.look_soon)
        self._queues[partition.partition_id] = queue
        task = asyncio.create_task(queue.run())
        task.add_done_callback(partial(self._note_end, queue))
        self._tasks.append(task)
        return queue

    def _note_end(self, queue: PartitionQueue, _: asyncio.Task[None]) -> None:
        """End the node after a partition's failure if the configuration says so. Else a partition,
        which fails only by a bug, ends alone."""
        if queue.failed is not None and self._config.ends_with_partition:
            self._error = queue.failed
            self._ended.set()

    async def _run_upkeep(self) -> None:
        assert self._upkeep is not None
        try:
            await self._upkeep.run()
        except Exception as error:
            log.exception("upkeep_ended")
            self._error = error
            self._ended.set()

    async def _stop_upkeep(self) -> None:
        if self._upkeep is None or self._upkeep_task is None:
            return
        self._upkeep.stop()
        if self._error is not None:
            # The upkeep may wait for a partition that has ended.
            self._upkeep_task.cancel()
        await asyncio.gather(self._upkeep_task, return_exceptions=True)

    # The two ports

    def _serve_data(self, connection: Connection) -> Awaitable[None]:
        codec = STORAGE_CODEC.up_to(self._config.protocol_version_max)
        peer = StoragePeer(connection, Link(codec, STORAGE_SERVER_GREETING, opens=True))
        return self._serve(peer, self._receive)

    def _serve_admin(self, connection: Connection) -> Awaitable[None]:
        peer = StoragePeer(connection, Link(ADMIN_CODEC, ADMIN_SERVER_GREETING, opens=True))
        return self._serve(peer, self._receive_admin)

    async def _serve(
        self, peer: StoragePeer, receive: Callable[[StoragePeer, Message], Awaitable[None]]
    ) -> None:
        connection, link = peer.connection, peer.link
        seconds = self._config.handshake_seconds or HANDSHAKE_SECONDS_MAX
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
        if self._stage is NodeStage.STOPPING:
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
            peer.send([await self._administrator.answer(message)])
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
            check_key(message, self._config.cluster_key)
            if message.partition_count > self.partition_count:
                await self._look()
            check_count(message, self.partition_count)
        except StorageError as error:
            self._peer_log.warning("open_refused peer=%s error=%s", peer.connection.peer, error)
            return error
        peer.is_opened = True
        peer.link.opened()
        return None

    async def _look(self) -> None:
        """Learn how many partitions the cluster has now. Raises StorageError."""
        if self._growth is not None and self._stage is NodeStage.SERVING:
            await self._growth.look()

    async def _new_queue(self, partition_id: PartitionId) -> PartitionQueue:
        assert self._growth is not None
        partition = self._partition(partition_id)
        async with self._growth.opening:
            await self._host.workers.run_blocking(partition.open)
            return self._queues.get(partition_id) or self._add_queue(partition)


async def _stop_queue(queue: PartitionQueue, task: asyncio.Task[None]) -> None:
    if not task.done():
        try:
            await queue.stop()
        except WaltzError as error:
            log.warning("close_failed error=%s", error)
        await task
