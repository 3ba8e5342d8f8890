"""Leaves: the entries of a partition's tree, one per transaction.

    offset  size  field
         0    16  cluster key
        16     4  partition, big-endian
        20     n  the record as on disk, without the CRC-32 at its end

The hash of a leaf is SHA-256(0x00 || entry), RFC 6962. The transaction ID is in the record and is
the leaf's index.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final
from uuid import UUID

from waltz.attest.merkle import LEAF_PREFIX
from waltz.record import RecordBatch
from waltz.types import PartitionId

PLACE: Final = struct.Struct(">16si")
"""Cluster key and partition, before each record."""
_CHECKSUM_BYTES: Final = 4


class Leaves:
    """The leaves of one partition of one cluster."""

    def __init__(self, cluster_key: UUID, partition_id: PartitionId) -> None:
        self._place = PLACE.pack(cluster_key.bytes, partition_id)

    def entry(self, record: bytes) -> bytes:
        """Return the entry of a whole record, as on disk."""
        return self._place + record[:-_CHECKSUM_BYTES]

    def hashes(self, batch: RecordBatch) -> bytes:
        """Return the leaf hashes of all records, 32 bytes each."""
        block = memoryview(batch.block)
        prefix = LEAF_PREFIX + self._place
        starts = batch.offsets[:-1].tolist()
        ends = (batch.offsets[1:] - _CHECKSUM_BYTES).tolist()
        pieces = map(block.__getitem__, map(slice, starts, ends))
        return b"".join([sha256(prefix + each).digest() for each in pieces])
