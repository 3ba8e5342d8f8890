"""The metadata and the assignment of one partition's store, read and written at the coordinator.

Owns the paths, the compare-and-set and the pauses after failures. Decides nothing: the session
keeper asks, and is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.skipped_numbers import shows_set_back
from waltz.cluster.skipping_shell import pass_over_numbers
from waltz.errors import (
    ConfigurationError,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    ProtocolError,
    UnavailableError,
)
from waltz.host import Host, Node
from waltz.limits import COORDINATOR_RETRY_SECONDS_MAX, COORDINATOR_RETRY_SECONDS_MIN
from waltz.store.requests import (
    MetadataEvent,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
)
from waltz.store.session_keeper import ReplicasAssigned
from waltz.types import PartitionId, ReplicaId

CoordinatorEvent: TypeAlias = MetadataEvent | ReplicasAssigned

log = logging.getLogger(__name__)


async def pause(host: Host, seconds: float) -> None:
    """Wait for at least half of `seconds`, so that not all partitions try again at once."""
    if seconds:
        await asyncio.sleep(host.random.uniform(seconds / 2, seconds))


class PartitionCoordination:
    """The metadata and the assignment of one partition; `put` takes what comes of each question."""

    def __init__(
        self,
        host: Host,
        partition_id: PartitionId,
        root: str,
        put: Callable[[CoordinatorEvent], None],
    ) -> None:
        self._host = host
        self._partition_id = partition_id
        self._paths = ClusterPaths(root)
        self._put = put

    async def read_metadata(self, delay_seconds: float) -> None:
        """Read the metadata, which is created if there is none, and the assignment."""
        await pause(self._host, delay_seconds)
        try:
            node, (_, assigned) = await asyncio.gather(
                self._metadata_node(), self._read_assignment()
            )
            metadata = PartitionMetadata.decode(node.data or b"", self._partition_id)
        except (UnavailableError, CoordinationError, ProtocolError) as error:
            log.warning("metadata_unreadable partition=%d error=%s", self._partition_id, error)
            self._put(MetadataReadFailed(str(error)))
            return
        self._put(MetadataRead(metadata, node.version, assigned))

    async def _metadata_node(self) -> Node:
        path = self._paths.partition_metadata(self._partition_id)
        try:
            return await self._host.coordinator.read(path)
        except NoNodeError:
            pass
        try:
            data = NEW_PARTITION.encode(self._partition_id)
            await self._host.coordinator.create(path, data)
        except NodeExistsError:
            pass
        return await self._host.coordinator.read(path)

    async def write_metadata(self, metadata: PartitionMetadata, version: int) -> None:
        """Replace the metadata if it still has `version`. If the session's number shows that the
        coordinator was set back, the numbers that it may have given since are then passed over, and
        the session is left to the server that opens the partition under a higher generation."""
        path = self._paths.partition_metadata(self._partition_id)
        try:
            written = await self._host.coordinator.write(
                path, metadata.encode(self._partition_id), version=version
            )
        except (UnavailableError, CoordinationError) as error:
            log.info("metadata_not_written partition=%d error=%s", self._partition_id, error)
            self._put(MetadataWriteFailed(str(error)))
            return
        # Only now: replicas that promise sessions in order give no sign of it again, and this
        # number is what tells the next server that the metadata's replica states are old.
        if shows_set_back(metadata):
            await self._pass_over_numbers(metadata)
            return
        self._put(MetadataWritten(written))

    async def _pass_over_numbers(self, metadata: PartitionMetadata) -> None:
        reason = "the coordinator was set back: the partition waits for a higher generation"
        try:
            await pass_over_numbers(
                self._host.coordinator,
                self._host.random,
                self._paths.root,
                self._partition_id,
                metadata.generation,
                metadata.session_id,
            )
        except (UnavailableError, CoordinationError, ProtocolError, ConfigurationError) as error:
            reason = str(error)
            log.warning("numbers_not_passed_over partition=%d error=%s", self._partition_id, error)
        self._put(MetadataWriteFailed(reason))

    async def _read_assignment(self) -> tuple[Node, tuple[ReplicaId, ...]]:
        node = await self._host.coordinator.read(self._paths.replica_assignments)
        return node, ReplicaAssignments.decode(node.data or b"").replicas(self._partition_id)

    async def follow_assignment(self) -> None:
        """Tell the assignment, and each further one, for ever."""
        pause_seconds = COORDINATOR_RETRY_SECONDS_MIN
        logged: str | None = None
        while True:
            try:
                node, assigned = await self._read_assignment()
                self._put(ReplicasAssigned(assigned))
                pause_seconds, logged = COORDINATOR_RETRY_SECONDS_MIN, None
                await self._host.coordinator.changed(self._paths.replica_assignments, node)
            except (UnavailableError, CoordinationError, ProtocolError) as error:
                # Once per trouble: a server may have thousands of partitions, and lack the
                # coordinator for days.
                if str(error) != logged:
                    logged = str(error)
                    log.warning(
                        "assignment_unreadable partition=%d error=%s", self._partition_id, error
                    )
                await pause(self._host, pause_seconds)
                pause_seconds = min(2 * pause_seconds, COORDINATOR_RETRY_SECONDS_MAX)
