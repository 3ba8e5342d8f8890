"""What waiting requests reserve. Row SV-09."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from waltz.server.appends.locked_appends import Request, lock_slot_columns
from waltz.server.appends.reservations import Reservations
from waltz.types import ClientId

SLOTS = 1000


def request(client_id: int, *locks: int) -> Request:
    return Request(client_id, -1, [*locks], [], [])


def test_later_requests_of_the_client_or_with_the_lock_wait_for_the_same_ticket() -> None:
    reservations = Reservations(SLOTS)
    reservations.reserve(request(1, 7), 5)
    assert reservations.newest(request(1, 8)) == 5
    assert reservations.newest(request(2, 7)) == 5
    assert reservations.newest(request(2, 8)) == 0
    reservations.reserve(request(2, 7, 8), 9)
    assert reservations.newest(request(3, 7)) == reservations.newest(request(3, 8)) == 9
    assert reservations.until == 9
    reservations.forget()
    assert reservations.newest(request(2, 7, 8)) == 0
    reservations.check_invariants(0)


def test_reserving_by_columns_is_reserving_one_after_the_other() -> None:
    one_by_one, together = Reservations(SLOTS), Reservations(SLOTS)
    for lock, ticket in ((7, 3), (8, 4), (7, 6)):
        one_by_one.reserve(request(1, lock), ticket)
    slots = lock_slot_columns(np.array([7, 8, 7]), SLOTS)
    together.reserve_all(ClientId(1), slots, np.array([3, 4, 6]), 6)
    assert together.table.tolist() == one_by_one.table.tolist()
    assert (together.until, together.client_until) == (one_by_one.until, one_by_one.client_until)
    assert together.newest_of(slots).tolist() == [6, 4, 6]


def test_what_was_reserved_stays_reserved_when_there_are_more_slots() -> None:
    reservations = Reservations(SLOTS)
    reservations.reserve(request(1, 7), 5)
    reservations.grow(2)
    assert reservations.newest(request(2, 7)) == 5


@pytest.mark.parametrize(
    "write",
    [
        lambda reservations: reservations.reserve(request(1, 8), 5),
        lambda reservations: reservations.reserve_all(
            ClientId(1), lock_slot_columns(np.array([8]), SLOTS), np.array([5]), 5
        ),
        lambda reservations: reservations.grow(2),
    ],
    ids=["one by one", "by columns", "grown"],
)
def test_a_slot_beyond_the_newest_ticket_is_found_after_every_way_to_write(
    write: Callable[[Reservations], None],
) -> None:
    """The table is looked through again once anything was written into it."""
    reservations = Reservations(SLOTS)
    reservations.reserve(request(1, 7), 4)
    reservations.check_invariants(5)
    reservations.table[3] = 6
    write(reservations)
    with pytest.raises(AssertionError):
        reservations.check_invariants(6)


def test_a_slot_that_outlasts_the_reservations_is_found() -> None:
    reservations = Reservations(SLOTS)
    reservations.reserve(request(1, 7), 4)
    reservations.check_invariants(5)
    reservations.forget()
    reservations.table[3] = 4
    with pytest.raises(AssertionError):
        reservations.check_invariants(5)
