"""A storage node: its directory, its two ports, and one queue per partition.

Owns the start and the end of all that. The ports are in `storage_ports_shell.py`, requests wait in
`partition_queue_shell.py`, and the node's own work is in `upkeep_shell.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.access.auditing import Auditing
from waltz.access.policy_watch_shell import (
    EVERYBODY_MAY,
    AccessConfig,
    PolicyWatch,
    StoredPolicy,
)
from waltz.audit.audit_shell import Audit
from waltz.errors import (
    ConfigurationError,
    WaltzError,
)
from waltz.host import Host, Listener
from waltz.limits import (
    HANDSHAKE_SECONDS_MAX,
    SCRUB_BYTES_PER_SECOND,
    SCRUB_INTERVAL_SECONDS,
    SEGMENT_BYTES_THRESHOLD,
    SEGMENTS_OPEN_MAX,
)
from waltz.storage.administrator_shell import Administrator
from waltz.storage.directory.control_file import ControlFile, open_control_file
from waltz.storage.directory.space import FREE_MINIMUM, FreeMinimum
from waltz.storage.directory_growth_shell import Growth, ReadCount
from waltz.storage.far_sessions_shell import FarSessions, LatestSession
from waltz.storage.gate_shell import Gate
from waltz.storage.log.segment_recovery import TornTail
from waltz.storage.partition_queue_shell import PartitionQueue
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.scrubber import ScrubCounters
from waltz.storage.storage_metrics import NodeStage, NodeState
from waltz.storage.storage_ports_shell import StoragePorts
from waltz.storage.upkeep_shell import Upkeep, log_opened
from waltz.types import NOTHING, Address, PartitionId
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
)

SCRUB_START_SECONDS: Final = 60.0
"""From the start of a node to its first pass: meanwhile its servers recover with it."""


log = logging.getLogger(__name__)


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
    access: AccessConfig = EVERYBODY_MAY
    """The rights of peers, and what is written down of their use."""
    stored_policy: StoredPolicy | None = None
    """The policy that the coordinator keeps; None: `access` does not say to follow it."""


class StorageNode:
    """The replicas of this node's partitions, served on two ports."""

    def __init__(self, host: Host, config: StorageConfig) -> None:
        self._host = host
        self._config = config
        self._control_file: ControlFile | None = None
        self._queues: dict[PartitionId, PartitionQueue] = {}
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self._growth: Growth | None = None
        administrator = Administrator(
            self._queues, lambda: self.partition_count, self._new_queue, self.state, self._look
        )
        self._audit = Audit(host, config.access.audit, f"storage {config.data_address}")
        self._policy_watch = PolicyWatch(
            host, config.access, audit=self._audit, stored=config.stored_policy
        )
        self._gate = Gate(self._policy_watch, config.access.name_sources, Auditing(self._audit))
        self._ports = StoragePorts(
            self._queues,
            administrator.answer,
            FarSessions(host.clock, config.latest_session),
            self._gate,
            lambda: self.partition_count,
            self._look,
            cluster_key=config.cluster_key,
            handshake_seconds=config.handshake_seconds or HANDSHAKE_SECONDS_MAX,
            protocol_version_max=config.protocol_version_max,
        )
        self._stage = NodeStage.STARTING
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
            space_look_seconds=0.0 if self._upkeep is None else self._upkeep.look_seconds,
            scrub=ScrubCounters() if scrubber is None else scrubber.counters,
            policy=self._gate.standing(),
            audit=self._audit.standing(),
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
        or node's, a port is taken, the policy has a fault, or the audit log cannot be written.
        Raises what the registration raises.
        """
        try:
            await self._audit.start()
            await self._policy_watch.start()
            await self._host.workers.run_blocking(self._open_directory)
            if self._config.register is not None:
                await self._config.register(self.directory_id)
            for partition, torn in await self._host.workers.run_blocking(self._open_partitions):
                self._add_queue(partition)
                log_opened(partition, torn)
            self._upkeep_task = asyncio.create_task(self._run_upkeep())
            network, config = self._host.network, self._config
            ports = self._ports
            self._listeners.append(await network.listen(config.data_address, ports.serve_data))
            self._listeners.append(await network.listen(config.admin_address, ports.serve_admin))
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
        self._ports.is_stopping = True
        for listener in self._listeners:
            await listener.close()
        await self._policy_watch.stop()
        await self._stop_upkeep()
        await asyncio.gather(*map(_stop_queue, self._queues.values()))
        self._ports.close_connections()
        self._queues.clear()
        if self._growth is not None:
            await self._growth.stop()
        await self._audit.stop()
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
        queue = PartitionQueue(self._host, partition, self._upkeep.look_soon, self._note_failure)
        self._queues[partition.partition_id] = queue
        return queue

    def _note_failure(self, error: Exception) -> None:
        """End the node after a partition's failure if the configuration says so. Else a partition,
        which fails only by a bug, ends alone."""
        if self._config.ends_with_partition:
            self._error = error
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

    # Partitions

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


async def _stop_queue(queue: PartitionQueue) -> None:
    if queue.failed is None:
        try:
            await queue.stop()
        except WaltzError as error:
            log.warning("close_failed error=%s", error)
