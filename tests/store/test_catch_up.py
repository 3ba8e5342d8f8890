from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.limits import CATCH_UP_BYTES_MAX, CATCH_UP_RECORDS_MAX
from waltz.record import NewRecord, RecordBatch, empty_batch, join_batches, pack_records
from waltz.store.catch_up import CopySize, RecentBatches, checked_copy, choose_source
from waltz.types import NOTHING, ReplicaId, TransactionId

A, B, C = ReplicaId("a:1"), ReplicaId("b:1"), ReplicaId("c:1")


def batch(first: int, count: int, size: int = 3) -> RecordBatch:
    data = b"x" * size
    record = NewRecord(b"\0" * 16, 0, data, crc32(data))
    return pack_records(TransactionId(first), [record] * count)


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(0, 1000), st.integers(-1, 40))
def test_memory_forgets_only_the_oldest_committed(
    counts: list[int], bytes_max: int, committed: int
) -> None:
    recent = RecentBatches(bytes_max)
    everything: list[RecordBatch] = []
    first = 0
    for count in counts:
        everything.append(batch(first, count))
        recent.add(everything[-1])
        first += count
    recent.forget(TransactionId(committed))
    recent.check_invariants()
    remembered = [b for b in everything if recent.starting_at(b.first_transaction_id) is not None]
    assert remembered == everything[len(everything) - len(remembered) :]
    for one in everything:
        if one.last_transaction_id > committed:
            assert one in remembered
    droppable = remembered[:1] and remembered[0].last_transaction_id <= committed
    assert not droppable or sum(len(b.block) for b in remembered) <= bytes_max


def test_memory_starts_in_the_middle_of_a_batch() -> None:
    recent = RecentBatches(1000)
    recent.add(batch(5, 4))
    found = recent.starting_at(TransactionId(7))
    assert found == batch(7, 2)
    for missing in (4, 9):
        assert recent.starting_at(TransactionId(missing)) is None


def test_memory_knows_where_it_ends_even_when_all_is_forgotten() -> None:
    recent = RecentBatches(0)
    assert recent.end == NOTHING
    recent.add(batch(5, 4))
    recent.forget(TransactionId(8))
    recent.check_invariants()
    assert recent.starting_at(TransactionId(8)) is None
    assert recent.end == 9
    with pytest.raises(AssertionError):
        recent.add(batch(10, 1))


def test_the_source_holds_the_record_and_failed_least() -> None:
    """ST-26, ST-14."""
    holdings = [(A, TransactionId(9)), (B, TransactionId(12)), (C, TransactionId(3))]
    assert choose_source(TransactionId(5), holdings, {}) == B
    assert choose_source(TransactionId(5), holdings, {B: 1}) == A
    assert choose_source(TransactionId(10), holdings, {B: 7}) == B
    assert choose_source(TransactionId(13), holdings, {}) is None


def test_copies_are_bounded_by_count_and_adapt_to_size() -> None:
    """ST-15."""
    size = CopySize()
    first = TransactionId(0)
    assert size.count(first, TransactionId(4)) == 5
    assert size.count(first, TransactionId(10**6)) == 20
    for _ in range(5):
        size.copied(batch(0, 20, 10))
    assert size.count(first, TransactionId(10**6)) == CATCH_UP_RECORDS_MAX
    size.copied(batch(0, 2, CATCH_UP_BYTES_MAX // 8))
    assert size.count(first, TransactionId(10**6)) == 7
    size.copied(batch(0, 1, 2 * CATCH_UP_BYTES_MAX))
    assert size.count(first, TransactionId(10**6)) == 1


def test_a_copy_is_cut_to_the_byte_bound_but_never_to_nothing() -> None:
    records = batch(3, 5, CATCH_UP_BYTES_MAX // 2 - 100)
    assert len(checked_copy(records, TransactionId(3), 5)) == 2
    huge = batch(3, 2, CATCH_UP_BYTES_MAX + 1)
    assert checked_copy(huge, TransactionId(3), 2) == huge.slice(TransactionId(3), 1)
    small = batch(3, 5)
    assert checked_copy(small, TransactionId(3), 5) is small


@pytest.mark.parametrize(
    "answer", [empty_batch(TransactionId(0)), batch(4, 1), batch(2, 4), batch(3, 6)]
)
def test_an_answer_to_another_question_is_refused(answer: RecordBatch) -> None:
    with pytest.raises(RemoteProtocolError):
        checked_copy(answer, TransactionId(3), 5)


def test_damaged_data_does_not_spread() -> None:
    sound = NewRecord(b"\0" * 16, 0, b"data", crc32(b"data"))
    damaged = sound._replace(data=b"xxxx")
    records = pack_records(TransactionId(7), [sound, damaged])
    with pytest.raises(CorruptionError, match="transaction 8"):
        checked_copy(records, TransactionId(7), 2)
    both = join_batches([batch(0, 2), batch(2, 2)])
    assert checked_copy(both, TransactionId(0), 4) == both
