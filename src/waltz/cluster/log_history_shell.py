"""The coordinator's node of histories: read when a storage node registers its directory."""

from __future__ import annotations

from uuid import UUID

from waltz.cluster.log_history import decode_histories
from waltz.cluster.paths import ClusterPaths
from waltz.errors import ForeignDirectoryError, NoNodeError
from waltz.host import Coordinator


async def refuse_retired(coordinator: Coordinator, paths: ClusterPaths, directory_id: UUID) -> None:
    """Raise ForeignDirectoryError if the directory holds a history of the log that a restore has
    ended: its records may differ from those that other replicas have under the same IDs."""
    try:
        node = await coordinator.read(paths.history)
    except NoNodeError:
        return
    for history in decode_histories(node.data or b""):
        if directory_id in history.retired_directories:
            raise ForeignDirectoryError(
                f"storage directory {directory_id} is of the time before the log was restored from"
                f" an archive (restore {history.history_id}): move the directory to another place"
                " and give the node an empty one, which servers fill"
            )
