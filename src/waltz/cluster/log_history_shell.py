"""The coordinator's node of histories: read when a storage node registers its directory, when a
server joins its cluster, and by those who follow the log without servers that tell them."""

from __future__ import annotations

from uuid import UUID

from waltz.cluster.log_history import LogHistory, decode_histories
from waltz.cluster.paths import ClusterPaths
from waltz.errors import ConfigurationError, ForeignDirectoryError, NoNodeError
from waltz.host import Coordinator


async def read_log_histories(
    coordinator: Coordinator, paths: ClusterPaths
) -> tuple[LogHistory, ...]:
    """Return the histories that began with a restore. Raises RemoteProtocolError: the node says
    something else; CoordinatorLostError."""
    try:
        node = await coordinator.read(paths.history)
    except NoNodeError:
        return ()
    return decode_histories(node.data or b"")


async def expect_histories(
    coordinator: Coordinator, paths: ClusterPaths, known: tuple[LogHistory, ...]
) -> None:
    """Check that the node has what a server has read at its start, and tells its clients. A restore
    makes the coordinator's nodes anew, so that a server which lives through it registers again.

    Raises ConfigurationError: it has something else.
    """
    if await read_log_histories(coordinator, paths) != known:
        raise ConfigurationError(
            "the log was restored from an archive since this server started: restart the server"
        )


async def refuse_retired(coordinator: Coordinator, paths: ClusterPaths, directory_id: UUID) -> None:
    """Raise ForeignDirectoryError if the directory holds a history of the log that a restore has
    ended: its records may differ from those that other replicas have under the same IDs."""
    for history in await read_log_histories(coordinator, paths):
        if directory_id in history.retired_directories:
            raise ForeignDirectoryError(
                f"storage directory {directory_id} is of the time before the log was restored from"
                f" an archive (restore {history.history_id}): move the directory to another place"
                " and give the node an empty one, which servers fill"
            )
