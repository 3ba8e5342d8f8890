"""What goes into one message, and what needs another one."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest

from waltz.client.appends import append_batches
from waltz.client.appends.append_batches import AppendBatches
from waltz.client.transaction import PartitionLocalLock, TransactionBuilder
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.before_batches import apart
from waltz.wire.client_protocol import CLIENT_CODEC, AppendRequest


def request(number: int, generation: int = 3) -> RequestId:
    return RequestId(ClientId(7), Generation(generation), PartitionId(2), number)


def draft(
    data: bytes = b"data", write: int = 0, read: int = 0, append: int = 0
) -> TransactionBuilder:
    builder = TransactionBuilder()
    builder.set_data(data)
    builder.set_header(len(data))
    builder.set_write_locks([PartitionLocalLock("w", n) for n in range(write)])
    builder.set_read_locks([PartitionLocalLock("r", n) for n in range(read)])
    builder.set_append_locks([PartitionLocalLock("a", n) for n in range(append)])
    return builder


def gathered(*appends: tuple[RequestId, TransactionBuilder]) -> list[AppendBatch]:
    batches = AppendBatches()
    for request_id, each in appends:
        batches.add(request_id, [each], [TransactionId(request_id.sequence_number)])
    found = batches.take()
    assert batches.take() == []
    return found


def numbers(batches: Sequence[AppendBatch]) -> list[tuple[int, int]]:
    return [(each.request_id.sequence_number, len(each.appends)) for each in batches]


def test_a_batch_says_what_as_many_requests_say() -> None:
    """B-2."""
    drafts = [draft(b"one", 2, 1), draft(b""), draft(b"three", 0, 0, 3)]
    (batch,) = gathered(*[(request(5 + n), each) for n, each in enumerate(drafts)])
    assert CLIENT_CODEC.decode(CLIENT_CODEC.encode(batch, 5)[7:], 5) == batch
    appends = batch.appends
    requests = apart(batch)
    assert requests == [
        AppendRequest(
            request(5 + n),
            TransactionId(5 + n),
            each.write_locks,
            each.read_locks,
            each.append_locks,
            each.plain_header,
            each.plain_data,
            crc32(each.plain_data),
        )
        for n, each in enumerate(drafts)
    ]
    assert batch.request_id == request(5)
    assert appends.client_high_water_marks.tolist() == [5, 6, 7]
    assert appends.headers.tolist() == [r.header for r in requests]
    assert appends.bodies.data == [r.data for r in requests]
    assert appends.bodies.checksums.tolist() == [r.checksum for r in requests]
    kinds = [(r.write_locks, r.read_locks, r.append_locks) for r in requests]
    assert appends.lock_counts.tolist() == [[len(locks) for locks in each] for each in kinds]
    assert appends.lock_hashes.tolist() == [
        lock for each in kinds for locks in each for lock in locks
    ]


def test_numbers_that_do_not_follow_and_other_generations_start_another_batch() -> None:
    some = draft()
    found = gathered(
        (request(1), some), (request(2), some), (request(4), some), (request(5, 4), some)
    )
    assert numbers(found) == [(1, 2), (4, 1), (5, 1)]


@pytest.mark.parametrize(
    ("bound", "value", "expected"),
    [
        ("BATCH_APPENDS_MAX", 2, [(1, 2), (3, 2), (5, 1)]),
        ("BATCH_LOCKS_MAX", 7, [(1, 2), (3, 2), (5, 1)]),
        ("BATCH_LOCKS_MAX", 1, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]),
        ("BATCH_BYTES_MAX", 12, [(1, 3), (4, 2)]),
        ("BATCH_BYTES_MAX", 1, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]),
    ],
)
def test_bounds_start_another_batch_but_one_append_always_goes(
    bound: str, value: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-24."""
    monkeypatch.setattr(append_batches, bound, value)
    some = draft(b"data", 1, 1, 1)
    assert numbers(gathered(*[(request(n), some) for n in range(1, 6)])) == expected


def test_what_is_cleared_is_not_sent() -> None:
    batches = AppendBatches()
    batches.add(request(1), [draft()], [TransactionId(0)])
    batches.clear()
    assert batches.take() == []
