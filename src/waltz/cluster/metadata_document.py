"""The format tables of the metadata, printed from the declarations that write and read it.

    python -m waltz.cluster.metadata_document > docs/formats/metadata.md

Owns the words around the tables.
"""

from __future__ import annotations

import sys
from typing import Final

from waltz.cluster.byte_layout import Parts
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import DEFAULT_ROOT, SERVER_NODE_PREFIX, ClusterPaths
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.cluster.store_params import COUNTER_LAYOUT, ClusterParams, StoreParams
from waltz.limits import METADATA_ENTRIES_MAX, PARTITIONS_MAX
from waltz.types import Address, PartitionId, ReplicaId

_PATHS: Final = ClusterPaths()

_NODES: Final = (
    (_PATHS.root, "cluster parameters"),
    (_PATHS.server_descriptors, "partition assignment"),
    (f"{_PATHS.server_node_prefix}0000000000", "server descriptor; ephemeral, sequential"),
    (_PATHS.ids, "none"),
    (_PATHS.client_id_counter, "counter"),
    (_PATHS.server_id_counter, "counter"),
    (_PATHS.store, "store parameters"),
    (_PATHS.admin_lock, "none; ephemeral, held while store metadata is changed"),
    (_PATHS.partitions, "none"),
    (_PATHS.partition_metadata(PartitionId(0)), "partition metadata"),
    (_PATHS.group_descriptor, "group descriptor"),
    (_PATHS.replica_assignments, "replica assignments"),
    (_PATHS.connection_metadata, "connection metadata"),
    (_PATHS.storage_directories, "none; made by the first storage node that starts"),
    (
        _PATHS.storage_directory(ReplicaId("localhost:7000")),
        "ID of the directory in which that storage node works: a UUID as 36 characters",
    ),
    (_PATHS.server_preferences, "none; made when a server is first told what it prefers"),
    (
        _PATHS.server_preference(Address("localhost", 7000)),
        "server descriptor of the server at that address, whose preferences outlive it",
    ),
    (_PATHS.consumers, "none; made with the first consumer"),
    (
        _PATHS.consumer("name"),
        "the marks of a named consumer: JSON, {partition: [mark, milliseconds since 1970]}",
    ),
    (
        _PATHS.cut,
        "the time at which a cut was last being taken: milliseconds since 1970 in decimal digits",
    ),
    (
        _PATHS.policy,
        "the policy that servers and storage nodes may follow: its text as it was written",
    ),
    (_PATHS.notes, "none; made with the first note"),
    (_PATHS.note("name"), "an application's, such as the progress of a Spark sink: JSON"),
    (_PATHS.history, "histories that restores under the same cluster key began: JSON"),
    (_PATHS.restore, "the restore that made the cluster, or is making it: JSON"),
    (
        _PATHS.restored_directory(ReplicaId("localhost:7000")),
        "report of the storage directory that was filled for that storage node: JSON",
    ),
    (
        _PATHS.partition_restore(PartitionId(0)),
        "restore of that partition alone while it is under way, above reports of directories: JSON",
    ),
)

_VALUES: Final[tuple[tuple[str, Parts], ...]] = (
    ("Cluster parameters", ClusterParams.LAYOUT),
    ("Counter", COUNTER_LAYOUT),
    ("Server descriptor", ServerDescriptor.LAYOUT),
    ("Partition assignment", PartitionAssignment.LAYOUT),
    ("Store parameters", StoreParams.LAYOUT),
    ("Partition metadata", PartitionMetadata.LAYOUT),
    ("Replica assignments", ReplicaAssignments.LAYOUT),
    ("Group descriptor", GroupDescriptor.LAYOUT),
    ("Connection metadata", ConnectionMetadata.LAYOUT),
)

_INTRODUCTION: Final = f"""\
# Metadata format

Printed by `python -m waltz.cluster.metadata_document`; a test compares this file with the code.

A cluster keeps its metadata in the nodes below its root, `{DEFAULT_ROOT}` unless told otherwise.
No value yet is null, which differs from empty. Running servers are the children of
`serverDescriptors`, named `{SERVER_NODE_PREFIX}` and ten digits; its child version, which counts
children created and deleted, is the membership version that an assignment carries. Nothing else may
be created there.

Integers are big-endian, two's complement. A Java text is modified UTF-8 (U+0000 as C0 80,
characters above U+FFFF as two surrogates of three bytes each) after its length in two bytes. A
count is an int; there are at most {PARTITIONS_MAX} partitions and {METADATA_ENTRIES_MAX} entries of
any other kind. Entries come in any order. A connect string is the `host:port` of a storage node's
data port. Bytes after a value are ignored. The Java original has no `storageDirectories`,
no `serverPreferences`, no `consumers`, no `cut`, no `policy`, no `notes`, no `history`, no
`restore` and no `partitionRestores`.

## Nodes

| Node | Data |
|---|---|
"""


def metadata_tables() -> str:
    """Return the whole text of `docs/formats/metadata.md`."""
    lines = [f"| `{path}` | {data} |" for path, data in _NODES]
    for title, layout in _VALUES:
        lines += ["", f"## {title}", "", "| Part | Encoding |", "|---|---|"]
        lines += [f"| {name} | {field.name} |" for name, field in layout.parts]
    return _INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metadata_tables())
