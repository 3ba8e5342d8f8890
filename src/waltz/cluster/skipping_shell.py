"""Passes over the numbers of a coordinator that was found to be set back to an older state.

Owns the order of the writes: client and server IDs first, then the generations, which tell
everybody that it was done (docs/decisions/0060-numbers-after-a-coordinators-backup.md).
"""

from __future__ import annotations

import logging

from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipped_numbers import (
    CLIENT_IDS_SKIPPED,
    NUMBERS_DRAWN,
    SERVER_IDS_SKIPPED,
    raised,
    skipped_generations,
)
from waltz.cluster.store_params import decode_counter, encode_counter
from waltz.errors import VersionConflictError
from waltz.host import Coordinator, Random
from waltz.types import Generation, PartitionId, SessionId

logger = logging.getLogger(__name__)


async def pass_over_numbers(
    coordinator: Coordinator,
    random: Random,
    root: str,
    partition_id: PartitionId,
    generation: Generation,
    session_id: SessionId,
) -> None:
    """Raise the counters of client and server IDs, then the generations of all partitions, to
    `session_id` at least, if the partition is still assigned under `generation`: else somebody has
    done it, or the partition is another server's. `random` draws how many more IDs are passed over
    than have to be.

    Of several servers that do it at once, each may raise the counters, and one the generations.
    Raises ConfigurationError: there are no numbers left; NoNodeError: there is no cluster;
    RemoteProtocolError; CoordinatorLostError.
    """
    paths = ClusterPaths(root)
    are_raised = False
    drawn = int(random.uniform(0, NUMBERS_DRAWN))
    while True:
        node = await coordinator.read(paths.server_descriptors)
        assignment = PartitionAssignment.decode(node.data or b"")
        skipped = skipped_generations(assignment, partition_id, generation, session_id)
        if skipped is None:
            return
        if not are_raised:
            clients = await _raise_counter(
                coordinator, paths.client_id_counter, CLIENT_IDS_SKIPPED + drawn, "client IDs"
            )
            servers = await _raise_counter(
                coordinator, paths.server_id_counter, SERVER_IDS_SKIPPED + drawn, "server IDs"
            )
            are_raised = True
        try:
            await coordinator.write(
                paths.server_descriptors, skipped.encode(), version=node.version
            )
        except VersionConflictError:
            continue  # servers have come or gone, or another one has raised the generations
        logger.warning(
            "coordinator_set_back partition=%d client_ids_above=%d server_ids_above=%d: replicas"
            " have promised sessions that the coordinator does not know; all generations were"
            " raised. See docs/operating/coordinator-backup.md",
            partition_id, clients, servers,
        )  # fmt: skip
        return


async def _raise_counter(coordinator: Coordinator, path: str, skipped: int, what: str) -> int:
    """Return the number above which the next IDs are."""
    while True:
        node = await coordinator.read(path)
        number = raised(decode_counter(node.data or b""), skipped, what)
        try:
            await coordinator.write(path, encode_counter(number), version=node.version)
        except VersionConflictError:
            continue  # an ID was given in between
        return number
