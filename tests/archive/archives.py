"""Small archives for tests: records, objects and manifests made by the product's own writer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID
from zlib import crc32

from waltz.archive.archive import Archive, read_archive
from waltz.archive.archive_target import Target, open_target
from waltz.archive.commits import commit, create_archive, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Manifest, TimeMark
from waltz.record import NewRecord, RecordBatch, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, ReplicaId, RequestId, TransactionId

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
OTHER_KEY = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
NOW = 1_790_000_000_000


def batch(first: int, count: int, *, partition: int = 0, size: int = 20) -> RecordBatch:
    """Return records whose content follows from their IDs; none is equal to another."""
    records = []
    for transaction_id in range(first, first + count):
        data = (b"%d/%d " % (partition, transaction_id) * (size // 4 + 1))[:size]
        request_id = RequestId(
            ClientId(7), Generation(1), PartitionId(partition), transaction_id + 1
        )
        records.append(
            NewRecord(request_id_bytes(request_id), transaction_id % 5, data, crc32(data))
        )
    return pack_records(TransactionId(first), records)


def add(
    target: Target,
    bounds: Mapping[int, Sequence[tuple[int, int]]],
    *,
    key: UUID = KEY,
    now: int = NOW,
    size: int = 20,
    salt: str = "",
) -> Archive:
    """Archive these runs (first, end) of partitions with one manifest, and open the result."""
    archive = create_archive(target, key)
    files = []
    for partition, runs in bounds.items():
        for first, end in runs:
            writer = ObjectWriter(key, PartitionId(partition), TransactionId(first))
            writer.add(batch(first, end - first, partition=partition, size=size))
            unique = random.Random(f"{salt}{partition}/{first}/{end}/{now}").randbytes(8).hex()
            files.append(write_object(target, writer.finish(), unique))
    change = Manifest(
        0,
        None,
        now,
        f"writer-{salt}{now}",
        files=tuple(files),
        time_marks={
            each.partition_id: (TimeMark(TransactionId(each.end - 1), now),) for each in files
        },
        nodes={"/store": b"made for tests"},
        verified={each.partition_id: (ReplicaId("localhost:6000"),) for each in files},
    )
    commit(target, archive.contents, change)
    return read_archive(target)


def directory_target(path: Path) -> Target:
    return open_target(f"file://{path}", create=True)
