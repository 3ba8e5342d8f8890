"""The history of the log that an archive has, and whether the log of now continues it.

The archive's copy of the coordinator's node says which restores there were. A restore that keeps
the cluster's key may go back behind what is archived: the log then has other transactions under
these IDs, and an archive that went on would join two logs.
"""

from __future__ import annotations

from uuid import UUID

from waltz.archive.manifest import Contents
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import decode_histories
from waltz.cluster.paths import ClusterPaths

NODE = ClusterPaths("/waltz").history.removeprefix("/waltz")
"""The path below the cluster's root."""

REMEDY = (
    "Nothing more was archived. Keep the archive, which may have the only copy of what the log has"
    " lost, and archive to another target"
)


def archived_history(contents: Contents, cluster_key: UUID) -> UUID:
    """Return the history that was archived last. Raises RemoteProtocolError: the copy of the node
    cannot be read."""
    node = contents.nodes.get(NODE)
    restores = decode_histories(node) if node else ()
    return Histories.kept(cluster_key, restores).current


def expect_archived(contents: Contents, histories: Histories) -> None:
    """Check that the log with these histories has all that is archived. Raises
    HistoryChangedError."""
    history = archived_history(contents, histories.cluster_key)
    for partition_id in sorted(contents.files):
        histories.check(
            partition_id,
            history,
            contents.end(partition_id) - 1,
            who="the archive",
            another_log=REMEDY,
            abandoned=REMEDY,
        )
