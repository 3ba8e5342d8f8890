"""Conclusions from the answers of servers, storage nodes and journals, by value."""

from __future__ import annotations

from zlib import crc32

from waltz.operators.explanation_shell import (
    Copy,
    CopyRead,
    CopyStanding,
    judged,
    majority_record,
)
from waltz.record import Record
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    TransactionId,
)

P0 = PartitionId(0)
S1, S2, S3 = (ReplicaId(f"s{number}:1") for number in (1, 2, 3))


def record(data: bytes) -> Record:
    request_id = RequestId(ClientId(7), Generation(1), P0, 11)
    return Record(TransactionId(5), request_id, 0, data, crc32(data))


def test_copies_are_compared_with_the_record() -> None:
    reads = [
        CopyRead(S1, record(b"a")),
        CopyRead(S2, record(b"b")),
        CopyRead(S3, None, CopyStanding.MISSING, "its log ends before"),
    ]
    assert judged(reads, record(b"a")) == (
        Copy(S1, CopyStanding.SAME, ""),
        Copy(S2, CopyStanding.DIFFERENT, "it is another record than the others have"),
        Copy(S3, CopyStanding.MISSING, "its log ends before"),
    )


def test_without_a_record_no_copy_is_called_good() -> None:
    (only,) = judged([CopyRead(S1, record(b"a"))], None)
    assert only.standing is CopyStanding.UNKNOWN


def test_a_record_is_that_of_a_majority_or_of_nobody() -> None:
    a, b = CopyRead(S1, record(b"a")), CopyRead(S2, record(b"b"))
    absent = CopyRead(S3, None, CopyStanding.UNKNOWN, "silent")
    assert majority_record([a, b, CopyRead(S3, record(b"b"))]) == record(b"b")
    assert majority_record([a, b, absent]) is None
    assert majority_record([absent, absent, a]) is None
    assert majority_record([]) is None
