"""What a partition remembers of refused appends, against a plain list."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waltz.server.appends.refusals import LockRefusals, Refusal, Refusals, RefusingLock
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

P3 = PartitionId(3)


def loser(number: int) -> RequestId:
    return RequestId(ClientId(7), Generation(1), P3, number)


LOCKS = st.builds(
    RefusingLock,
    st.sampled_from([-(2**31), -1, 0, 5, 2**31 - 1]),
    st.integers(0, 4).map(TransactionId),
    st.booleans(),
)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 5), LOCKS), max_size=4), max_size=6)


def remember(refusals: Refusals, batches: list[list[tuple[int, RefusingLock]]]) -> list[Refusal]:
    """Add the batches, at 1 s, 2 s, ...; return all refusals, the newest first."""
    added = []
    for now, batch in enumerate(batches, 1):
        rows = np.array([loser(number) for number, _ in batch], np.int32).reshape(-1, 4)
        refusals.add(rows, [lock for _, lock in batch], float(now))
        added += [Refusal(loser(number), lock, float(now)) for number, lock in batch]
    return added[::-1]


@given(BATCHES, st.integers(1, 8), st.integers(0, 9))
def test_the_newest_refusals_are_remembered(
    batches: list[list[tuple[int, RefusingLock]]], kept_max: int, count_max: int
) -> None:
    refusals = Refusals(kept_max)
    everything = remember(refusals, batches)
    kept = everything[:kept_max]
    assert (refusals.count, refusals.kept) == (len(everything), len(kept))
    assert refusals.oldest_at == (kept[-1].refused_at if kept else None)
    assert refusals.latest(count_max) == kept[:count_max]
    for winner in range(5):
        found = [each for each in kept if each.lock.winner == winner]
        assert refusals.latest(99, winner=TransactionId(winner)) == found
    for number in range(6):
        found = [each for each in kept if each.request_id == loser(number)]
        assert refusals.latest(99, loser=loser(number)) == found
    for lock_hash in {each.lock.lock_hash for each in everything}:
        found = [each for each in kept if each.lock.lock_hash == lock_hash]
        assert refusals.latest(99, lock_hash=lock_hash) == found


@given(BATCHES, st.integers(1, 8), st.integers(0, 9))
def test_locks_are_counted_from_what_is_remembered(
    batches: list[list[tuple[int, RefusingLock]]], kept_max: int, count_max: int
) -> None:
    refusals = Refusals(kept_max)
    refusals.by_lock(count_max)  # what was told before counts no longer
    kept = remember(refusals, batches)[:kept_max]
    counts = Counter(each.lock.lock_hash for each in kept)  # in order of the newest of each
    expected = []
    for lock_hash, count in counts.most_common():
        of_lock = [each for each in kept if each.lock.lock_hash == lock_hash]
        estimated = sum(not each.lock.is_exact for each in of_lock)
        newest = of_lock[0]
        expected.append(
            LockRefusals(lock_hash, count, estimated, newest.lock.winner, newest.refused_at)
        )
    assert refusals.by_lock(count_max) == expected[:count_max]


def test_what_was_refused_for_its_mark_alone_names_no_lock_and_is_not_counted() -> None:
    refusals = Refusals()
    refusals.add(np.array([loser(1)], np.int32), [RefusingLock(0, NOTHING, is_exact=False)], 1.0)
    assert (refusals.count, refusals.latest(9), refusals.by_lock(9)) == (0, [], [])


def test_each_refusal_counts_at_once_for_whoever_asked_before() -> None:
    refusals = Refusals(2)
    for count in range(1, 6):
        refusals.add(
            np.array([loser(count)], np.int32),
            [RefusingLock(count % 2, TransactionId(count), is_exact=True)],
            float(count),
        )
        hottest = refusals.by_lock(1)
        assert hottest == refusals.by_lock(1)
        newest = LockRefusals(count % 2, 1, 0, TransactionId(count), float(count))
        assert hottest == [newest], "the older one of two is of the other lock"
        assert refusals.by_lock(2)[:1] == hottest
        assert len(refusals.by_lock(2)) == min(count, 2)
