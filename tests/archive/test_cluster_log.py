"""The log as the archiver reads it: whole, dense and checked, or an error."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.archive.archives import batch
from waltz.archive.cluster_log import ClusterLog
from waltz.errors import CorruptionError, UnavailableError
from waltz.operators.replicas_shell import Replica
from waltz.reader.transaction_columns import columns_of_records
from waltz.record import RecordBatch
from waltz.types import NOTHING, PartitionId, ReplicaId

ZERO = PartitionId(0)
NODE = Replica(ZERO, ReplicaId("db1:1"), 2, True, NOTHING)


class Given:
    """A reader, of servers or of storage nodes, that has these batches."""

    def __init__(self, *batches: RecordBatch) -> None:
        self.batches = batches

    def read(self, partition: int, first: int, end: int) -> Generator[Any, None, None]:
        for each in self.batches:
            yield columns_of_records(each)

    def read_records(self, replica: Replica, first: int, end: int) -> Generator[Any, None, None]:
        yield from self.batches


def read(source: Replica | None, *batches: RecordBatch, end: int) -> bytes:
    log = ClusterLog(Given(*batches), Given(*batches))  # type: ignore[arg-type]
    return b"".join(each.block for each in log.read(source, ZERO, 3, end))


@pytest.mark.parametrize("source", [None, NODE])
def test_records_are_whole_dense_and_checked(source: Replica | None) -> None:
    good = batch(3, 9)
    assert read(source, batch(3, 4), batch(7, 5), end=12) == good.block
    with pytest.raises(UnavailableError, match="to transaction 6; expected it to hold 11"):
        read(source, batch(3, 4), end=12)
    with pytest.raises(CorruptionError, match="in the place of 7"):
        read(source, batch(3, 4), batch(8, 4), end=12)
    for place in range(len(good.block)):
        block = bytearray(good.block)
        block[place] ^= 1
        harmed = RecordBatch(good.first_transaction_id, bytes(block), good.offsets)
        with pytest.raises(CorruptionError):
            read(source, harmed, end=12)
