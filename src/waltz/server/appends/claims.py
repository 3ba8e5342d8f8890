"""The locks that undecided requests write if they are committed: exact, and quick to deny.

A claim is a lock and a ticket. The table has the newest ticket per slot, so that nearly every lock
that nobody claims is seen not to be claimed at three slots; for the rest the undecided claims
themselves are looked through. Must not know marks, reservations or who claims.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.server.appends.locked_appends import SlotTriple, lock_slot_columns, lock_slots

_FEW_LOCKS_MAX: Final = 16
"""Up to here they are looked up one after the other."""


@dataclass(slots=True)
class Claimed:
    """Locks whose marks move when their tickets are committed, side by side; tickets ascend.

    slots   a row of three per lock.
    """

    tickets: Sequence[int] | NDArray[np.int64]
    locks: Sequence[int] | NDArray[np.int64]
    slots: Sequence[SlotTriple] | NDArray[np.int64]

    def cut(self, place: int) -> tuple[Claimed, Claimed]:
        """Return those before `place`, and the others."""
        return (
            Claimed(self.tickets[:place], self.locks[:place], self.slots[:place]),
            Claimed(self.tickets[place:], self.locks[place:], self.slots[place:]),
        )

    def newest(self, lock: int) -> int:
        """Return the newest ticket that claims the lock; 0 if none does."""
        if isinstance(self.locks, np.ndarray):
            places = np.flatnonzero(self.locks == lock)
            return int(self.tickets[places[-1]]) if len(places) else 0
        if lock not in self.locks:
            return 0
        pairs = zip(self.tickets, self.locks, strict=True)
        return max(int(ticket) for ticket, each in pairs if each == lock)


class Claims:
    """The undecided claims of one partition."""

    def __init__(self, slot_count: int) -> None:
        self.table = np.zeros(slot_count, np.int64)
        """The newest ticket per slot; what is decided stays until it is overwritten."""
        self.at = self.table.data
        """The same: single elements are read and written three times as fast as through numpy."""
        self.lock_count = 0
        """The number of claims of locks; a lock that is claimed twice counts twice."""
        self._undecided: deque[Claimed] = deque()
        self._fresh: dict[int, int] = {}
        """Claimed one by one since `add` was called last."""
        self._is_checked = False
        """Whether the table is as `check_invariants` has last found it."""

    def claim(self, locks: Sequence[int], slots: Sequence[SlotTriple], ticket: int) -> None:
        """Let later requests of the same batch see the claims of one, until `add` has them with the
        rest."""
        at, fresh = self.at, self._fresh
        self._is_checked = False
        for lock, (a, b, c) in zip(locks, slots, strict=True):
            at[a] = at[b] = at[c] = ticket
            fresh[lock] = ticket

    def add(self, claimed: Claimed) -> None:
        """Take all that a batch claims."""
        self._fresh.clear()
        if not len(claimed.tickets):
            return
        self.lock_count += len(claimed.tickets)
        self._undecided.append(claimed)
        if isinstance(claimed.tickets, np.ndarray):
            # Tickets ascend, and of a repeated slot the last value stays: the newest.
            self.table[claimed.slots] = claimed.tickets[:, np.newaxis]
            self._is_checked = False

    def newest(self, lock: int) -> int:
        """Return the newest undecided ticket that claims the lock; 0 if none does."""
        if (ticket := self._fresh.get(lock)) is not None:
            return ticket
        for claimed in reversed(self._undecided):
            if ticket := claimed.newest(lock):
                return ticket
        return 0

    def newest_of(self, locks: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `newest`, for each of `locks`."""
        if len(locks) <= _FEW_LOCKS_MAX:
            return np.array([self.newest(lock) for lock in locks.tolist()], np.int64)
        claimed = [*self._undecided, Claimed([*self._fresh.values()], [*self._fresh], ())]
        known = np.concatenate([np.asarray(each.locks, np.int64) for each in claimed])
        tickets = np.concatenate([np.asarray(each.tickets, np.int64) for each in claimed])
        if not len(known):
            return np.zeros(len(locks), np.int64)
        order = np.argsort(known, kind="stable")  # of one lock the newest is the last
        places = order[np.searchsorted(known, locks, side="right", sorter=order) - 1]
        return np.where(known[places] == locks, tickets[places], 0)

    def decide(self, decided: int) -> list[Claimed]:
        """Take out what is claimed by tickets up to `decided`."""
        settled: list[Claimed] = []
        undecided = self._undecided
        while undecided and undecided[0].tickets[0] <= decided:
            claimed = undecided.popleft()
            if claimed.tickets[-1] > decided:
                claimed, rest = claimed.cut(bisect_right(claimed.tickets, decided))
                undecided.appendleft(rest)
            self.lock_count -= len(claimed.tickets)
            settled.append(claimed)
        return settled

    def grow(self, factor: int) -> None:
        """Have `factor` times as many slots: each new one has what the one had that it was."""
        self.table = np.tile(self.table, factor)
        self.at = self.table.data
        self._is_checked = False
        self._undecided = deque(_moved(each, len(self.table)) for each in self._undecided)

    def check_invariants(self, decided: int, issued: int) -> None:
        assert not self._fresh
        last = decided
        for claimed in self._undecided:
            assert len(claimed.tickets) == len(claimed.locks) == len(claimed.slots) > 0
            for ticket in claimed.tickets:
                assert last <= ticket
                last = int(ticket)
            assert claimed.tickets[0] > decided
        assert last <= issued
        assert self.lock_count == sum(len(claimed.tickets) for claimed in self._undecided)
        if not self._is_checked:  # only the three methods above write into it; `issued` never falls
            assert int(self.table.max()) <= issued
            self._is_checked = True


def _moved(claimed: Claimed, slot_count: int) -> Claimed:
    locks = claimed.locks
    if isinstance(locks, np.ndarray):
        return Claimed(claimed.tickets, locks, lock_slot_columns(locks, slot_count))
    return Claimed(claimed.tickets, locks, [lock_slots(lock, slot_count) for lock in locks])
