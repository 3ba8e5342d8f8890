"""What is claimed, against a list of all that was claimed and not decided."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.server.appends.claims import Claimed, Claims
from waltz.server.appends.locked_appends import lock_slot_columns, lock_slots

SLOTS = 1000
LOCKS = st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=6)


@given(st.lists(st.tuples(LOCKS, st.booleans(), st.integers(0, 8)), max_size=8), st.booleans())
def test_the_newest_claim_is_that_of_the_last_undecided_ticket(
    batches: list[tuple[list[list[int]], bool, int]], grows: bool
) -> None:
    """SV-07, SV-09: claimed one by one or by columns, decided in any pieces."""
    claims = Claims(SLOTS)
    slot_count = SLOTS
    listed: list[tuple[int, int]] = []
    issued = decided = 0
    for requests, by_columns, count in batches:
        fresh = []
        for locks in requests:
            issued += 1
            fresh += [(issued, lock) for lock in locks]
            for lock in () if by_columns else locks:
                claims.claim([lock], [lock_slots(lock, slot_count)], issued)
                assert claims.newest(lock) == issued
        tickets, locks = [ticket for ticket, _ in fresh], [lock for _, lock in fresh]
        if by_columns:
            column = np.array(locks, np.int64)
            slots = lock_slot_columns(column, slot_count)
            claims.add(Claimed(np.array(tickets, np.int64), column, slots))
        else:
            triples = [lock_slots(lock, slot_count) for lock in locks]
            claims.add(Claimed(tickets, locks, triples))
        listed += fresh
        decided = min(issued, decided + count)
        settled = claims.decide(decided)
        assert [int(t) for each in settled for t in each.tickets] == [
            ticket for ticket, _ in listed if ticket <= decided
        ]
        listed = [(ticket, lock) for ticket, lock in listed if ticket > decided]
        if grows and slot_count == SLOTS:
            claims.grow(2)
            slot_count *= 2
        claims.check_invariants(decided, issued)
        newest = {lock: ticket for ticket, lock in listed}
        asked = np.arange(41)
        assert claims.newest_of(asked).tolist() == [newest.get(lock, 0) for lock in range(41)]
        assert claims.newest_of(asked[:3]).tolist() == [newest.get(lock, 0) for lock in range(3)]
        for lock, ticket in newest.items():
            assert all(claims.at[slot] >= ticket for slot in lock_slots(lock, slot_count))


def claimed_by_columns(ticket: int) -> Claimed:
    locks = np.array([7], np.int64)
    return Claimed(np.array([ticket], np.int64), locks, lock_slot_columns(locks, SLOTS))


def claim_one(claims: Claims, ticket: int) -> None:
    slots = [lock_slots(7, SLOTS)]
    claims.claim([7], slots, ticket)
    claims.add(Claimed([ticket], [7], slots))


@pytest.mark.parametrize(
    "write",
    [claim_one, lambda claims, ticket: claims.add(claimed_by_columns(ticket))],
    ids=["one by one", "by columns"],
)
def test_a_claim_beyond_what_was_issued_is_found_however_late_it_is_written(
    write: Callable[[Claims, int], None],
) -> None:
    """The table is looked through again once anything was written into it."""
    for has_grown in (False, True):
        claims = Claims(SLOTS)
        claims.check_invariants(0, 0)
        write(claims, 3)
        claims.check_invariants(2, 3)
        claims.decide(3)
        claims.check_invariants(3, 3)
        write(claims, 5)
        claims.decide(5)
        if has_grown:
            claims.check_invariants(5, 5)
            claims.grow(2)
        with pytest.raises(AssertionError):
            claims.check_invariants(4, 4)
