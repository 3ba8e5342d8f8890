"""The locks that waiting requests reserve, so that what arrives later waits behind them.

A reservation is the ticket that the newest waiting request with a slot waits for. Like a mark, it
counts for a lock only as far as all three slots of the lock bear it out. Of one client everything
waits behind a request that does. Must not know marks, claims or which tickets are decided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from waltz.server.appends.locked_appends import Request, SlotTriple, lock_slots
from waltz.types import ClientId


class Reservations:
    """The reservations of one partition."""

    def __init__(self, slot_count: int) -> None:
        self.table = np.zeros(slot_count, np.int64)
        self._at = self.table.data
        """The same: single elements are read and written three times as fast as through numpy."""
        self.until = 0
        """The newest ticket that any request waits for."""
        self.client_until: dict[ClientId, int] = {}
        """The newest ticket that any request of the client waits for."""
        self._is_checked = False
        """Whether the table is as `check_invariants` has last found it."""

    def newest(self, request: Request) -> int:
        """Return the newest ticket that an earlier request of the same client, or with a lock of
        `request`, waits for; 0 if none does."""
        at = self._at
        reserved = (min(at[slot] for slot in slots) for slots in self._triples(request))
        return max(self.client_until.get(ClientId(request.client_id), 0), max(reserved, default=0))

    def reserve(self, request: Request, until: int) -> None:
        """Have what arrives after `request` wait with it for the ticket `until`."""
        at = self._at
        self._is_checked = False
        for slots in self._triples(request):
            for slot in slots:
                at[slot] = max(at[slot], until)
        self.until = max(self.until, until)
        client_id = ClientId(request.client_id)
        self.client_until[client_id] = max(self.client_until.get(client_id, 0), until)

    def newest_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the newest ticket that an earlier request with each lock waits for; `slots` has a
        row of three per lock."""
        newest: NDArray[np.int64] = self.table[slots].min(axis=1)
        return newest

    def reserve_all(
        self, client_id: ClientId, slots: NDArray[np.int64], tickets: NDArray[np.int64], last: int
    ) -> None:
        """As `reserve`, for requests of one client: a row of three slots and a ticket per lock.
        Tickets ascend to `last`."""
        # Of a repeated slot the last value stays: the highest.
        self._is_checked = False
        flat = slots.ravel()
        self.table[flat] = np.maximum(self.table[flat], np.repeat(tickets, 3))
        self.client_until[client_id] = last
        self.until = max(self.until, last)

    def forget(self) -> None:
        """Let nothing wait any longer."""
        if self.until:
            self.table.fill(0)
            self._is_checked = False
            self.until = 0
            self.client_until.clear()

    def grow(self, factor: int) -> None:
        """Have `factor` times as many slots: each new one has what the one had that it was."""
        self.table = np.tile(self.table, factor)
        self._at = self.table.data
        self._is_checked = False

    def check_invariants(self, issued: int) -> None:
        assert self.until <= issued
        if not self._is_checked:  # only the four methods above write into it, or let `until` fall
            assert int(self.table.max()) <= self.until
            self._is_checked = True

    def _triples(self, request: Request) -> list[SlotTriple]:
        """Return the slots of every lock of `request`."""
        return [
            lock_slots(lock, len(self.table))
            for locks in (request.write_locks, request.read_locks, request.append_locks)
            for lock in locks
        ]
