"""Optimistic locks of one partition: marks, claims and reservations per slot of a table.

A lock hash has three slots. What it was last written by is estimated as the smallest of their
marks, so the table may refuse a request that an exact list of locks would pass, never the reverse.
Every accepted request gets a *ticket*, counted up in the order in which requests go to the store,
which decides them in that same order. A slot is spoken for until a ticket is decided:

    claim        ticket of the newest accepted request that will move the slot's mark
    reservation  ticket that the newest waiting request with this slot waits for

so nothing is ever released by hand, and a request that waits knows its ticket. The more locks are
undecided at a time, the more slots there are, so that few are refused by chance.
Knows nothing of clients, messages or the store. Source: Waltz Internals, "Optimistic Locking".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from waltz.arrays import least
from waltz.limits import LOCK_TABLE_SLOTS
from waltz.server.appends.claims import Claimed, Claims
from waltz.server.appends.locked_appends import (
    LockColumns,
    LockedAppends,
    Request,
    SlotTriple,
    lock_slots,
)
from waltz.server.appends.recent_writes import RecentWrites
from waltz.server.appends.refusals import RefusingLock
from waltz.server.appends.reservations import Reservations
from waltz.types import NOTHING, ClientId, TransactionId

LOCK_TABLE_SLOTS_PER_CLAIM: Final = 64
"""The table doubles until it has this many slots per undecided lock, up to the maximum; then one
lock in ten thousand is refused by a hash collision."""

LOCK_TABLE_SLOTS_MAX: Final = 1 << 20
"""The most slots of one table; a slot takes 32 bytes."""


COLUMNS_MIN: Final = 32
"""Requests from which checking them by columns is faster than one after the other."""

_ROUNDS_MAX: Final = 8
"""So often it is looked who else waits if one does, until one by one is as fast."""


class Admission(NamedTuple):
    """The verdicts on a batch of requests, by index; a request in neither map was accepted.

    refused   index -> ID of the transaction estimated to hold a lock.
    waiting   index -> ticket to wait for before the request is checked again.
    """

    refused: dict[int, TransactionId]
    waiting: dict[int, int]


_ALL_ACCEPTED: Final = Admission({}, {})


class _Verdict(NamedTuple):
    """Why a request does not pass: the ticket to wait for, or the estimate that refuses it."""

    is_wait: bool
    value: int


class LockTable:
    """Checks append requests and remembers what they lock.

    A request that touches what an undecided one claims or an earlier one waits for has to wait for
    it. Otherwise it is refused if a lock it writes or reads may have moved past its client's
    high-water mark; an equal mark passes. Otherwise it is accepted. Append locks are recorded and
    not checked, so they wait for no claim, only for requests that arrived before.

    Whatever a client sends after a request of its own that waits, waits too: of one client's
    appends none may overtake another, for once a later one is in the feed the client gives up all
    earlier ones and writes them again. Source: Client-Server Communication, "Append Request" and
    "Detection of Failed Append Requests".
    """

    def __init__(
        self,
        high_water_mark: TransactionId,
        slot_count: int = LOCK_TABLE_SLOTS,
        slots_max: int = LOCK_TABLE_SLOTS_MAX,
    ) -> None:
        """`slot_count`: at first."""
        self._slot_count = slot_count
        self._slots_max = slots_max
        self._marks = np.full(slot_count, high_water_mark, np.int64)
        self._claims = Claims(slot_count)
        self._reservations = Reservations(slot_count)
        self._firsts = np.zeros(slot_count, np.int64)
        self._firsts_base = 0
        """Entries of `_firsts` that are not above this number belong to an earlier look."""
        # Single elements are read and written through views: three times as fast as through numpy.
        self._mark_at = self._marks.data
        self._recent_writes = RecentWrites()
        self.issued = 0
        """Tickets given so far; the newest ticket."""
        self.decided = 0
        """The newest ticket whose outcome is known; so are those of all before it."""

    def admit(self, appends: LockedAppends) -> Admission:
        """Check `appends` in order; accepted ones take the next tickets, in order."""
        count, lock_count = appends.client_ids.size, appends.lock_hashes.size
        if (
            not lock_count
            and self._reservations.until <= self.decided
            and least(appends.client_high_water_marks) >= NOTHING
        ):
            # No lock refuses them or has them wait, and nobody of their clients waits.
            self.issued += count
            return _ALL_ACCEPTED
        self._make_room(lock_count)
        if count < COLUMNS_MIN:
            return self._admit_one_by_one(appends.requests())
        return self._admit_by_columns(appends)

    def refusing_locks(self, appends: LockedAppends) -> list[RefusingLock]:
        """Return for each of `appends`, which have just been refused, the lock for which; the lock
        with hash 0 for one that was refused for its mark alone."""
        return [
            self._refusing(max((*writes, *reads), key=self._estimate, default=None))
            for _, _, writes, reads, _ in appends.requests()
        ]

    def _refusing(self, lock: int | None) -> RefusingLock:
        if lock is None:
            return RefusingLock(0, NOTHING, is_exact=False)
        estimate = self._estimate(lock)
        # Nobody has written the lock after the estimate; so if that one has, it was the last.
        is_exact = self._recent_writes.has(estimate, lock)
        return RefusingLock(lock, TransactionId(estimate), is_exact)

    def _estimate(self, lock: int) -> int:
        """Return the ID of the transaction that has last written the lock, or of a later one."""
        return min(self._mark_at[slot] for slot in lock_slots(lock, self._slot_count))

    def commit(self, first_transaction_id: TransactionId, count: int) -> None:
        """The `count` oldest undecided requests have the IDs from `first_transaction_id` on."""
        shift = first_transaction_id - self.decided - 1
        mark_at = self._mark_at
        for claimed in self._decide(count):
            self._recent_writes.add(claimed, shift)
            if isinstance(claimed.tickets, np.ndarray):
                # Tickets ascend, and of a repeated slot the last value stays: the newest.
                self._marks[claimed.slots] = (claimed.tickets + shift)[:, np.newaxis]
                continue
            for ticket, (a, b, c) in zip(claimed.tickets, claimed.slots, strict=True):
                mark_at[a] = mark_at[b] = mark_at[c] = ticket + shift

    def fail(self, count: int) -> None:
        """The `count` oldest undecided requests are not in the log and never will be."""
        self._decide(count)

    def forget_reservations(self) -> None:
        """Let all that wait be checked afresh: the caller admits them again, in order of arrival,
        ahead of anything new. What arrived later must not hold up what arrived earlier."""
        self._reservations.forget()

    def raise_marks(self, high_water_mark: TransactionId) -> None:
        """Treat every lock as written by `high_water_mark`: others may have written up to it."""
        np.maximum(self._marks, high_water_mark, out=self._marks)

    def check_invariants(self) -> None:
        assert 0 <= self.decided <= self.issued
        self._claims.check_invariants(self.decided, self.issued)
        self._reservations.check_invariants(self.issued)

    # Deciding

    def _decide(self, count: int) -> list[Claimed]:
        """Move `decided` on and return what the decided requests claimed."""
        decided = self.decided + count
        assert decided <= self.issued, f"{decided} decided of {self.issued}"
        self.decided = decided
        return self._claims.decide(decided)

    # Room

    def _make_room(self, lock_count: int) -> None:
        """Have more slots if there are few for what is undecided and `lock_count` locks more.

        As many times as many: what has been in a slot is then in each of those that its locks may
        have now, so that no mark is estimated lower than before.
        """
        wanted = LOCK_TABLE_SLOTS_PER_CLAIM * (self._claims.lock_count + lock_count)
        slot_count, factor = self._slot_count, 1
        while factor * slot_count < wanted and 2 * factor * slot_count <= self._slots_max:
            factor *= 2
        if factor == 1:
            return
        self._slot_count = factor * slot_count
        self._marks = np.tile(self._marks, factor)
        self._mark_at = self._marks.data
        self._firsts = np.zeros(self._slot_count, np.int64)
        self._firsts_base = 0
        self._claims.grow(factor)
        self._reservations.grow(factor)

    # One by one

    def _admit_one_by_one(self, requests: Sequence[Request]) -> Admission:
        refused: dict[int, TransactionId] = {}
        waiting: dict[int, int] = {}
        tickets: list[int] = []
        locks: list[int] = []
        slots: list[SlotTriple] = []
        for index, request in enumerate(requests):
            triples: list[SlotTriple] = []
            verdict = self._check(request, triples)
            if verdict is None:
                self.issued += 1
                recorded = [*request.write_locks, *request.append_locks]
                self._claims.claim(recorded, triples, self.issued)
                tickets += [self.issued] * len(recorded)
                locks += recorded
                slots += triples
            elif verdict.is_wait:
                waiting[index] = verdict.value
            else:
                refused[index] = TransactionId(verdict.value)
        self._claims.add(Claimed(tickets, locks, slots))
        return Admission(refused, waiting) if refused or waiting else _ALL_ACCEPTED

    def _check(self, request: Request, recorded: list[SlotTriple]) -> _Verdict | None:
        """Return None if `request` passes, with the slots of what it writes and appends added to
        `recorded`; reserve its slots if it has to wait."""
        estimate: int = NOTHING
        decided = until = self.decided
        mark_at, claims, slot_count = self._mark_at, self._claims, self._slot_count
        claim_at = claims.at
        for lock in request.write_locks:
            slots = a, b, c = lock_slots(lock, slot_count)
            if claim_at[a] > decided and claim_at[b] > decided and claim_at[c] > decided:
                until = max(until, claims.newest(lock))
            estimate = max(estimate, min(mark_at[a], mark_at[b], mark_at[c]))
            recorded.append(slots)
        for lock in request.read_locks:
            a, b, c = lock_slots(lock, slot_count)
            if claim_at[a] > decided and claim_at[b] > decided and claim_at[c] > decided:
                until = max(until, claims.newest(lock))
            estimate = max(estimate, min(mark_at[a], mark_at[b], mark_at[c]))
        for lock in request.append_locks:
            recorded.append(lock_slots(lock, slot_count))
        if self._reservations.until > decided:
            until = max(until, self._reservations.newest(request))
        if until > decided:
            self._reservations.reserve(request, until)
            return _Verdict(True, until)
        if estimate > request.client_high_water_mark:
            return _Verdict(False, estimate)
        return None

    # By columns

    def _admit_by_columns(self, appends: LockedAppends) -> Admission:
        """Check all at once; only those that wait, or may have to, one by one, in order."""
        columns = LockColumns.of(appends, self._slot_count)
        per_lock = np.where(columns.checked, self._marks[columns.slots].min(axis=1), NOTHING)
        estimates = columns.max_lock(per_lock, NOTHING)
        refusals = estimates > appends.client_high_water_marks
        uncertain = self._may_wait(appends, columns, refusals)
        accepted = ~(uncertain | refusals)
        waiting: dict[int, int] = {}
        if uncertain.any():
            waiting = self._admit_in_order(appends, columns, uncertain, accepted)
            refusals[list(waiting)] = False
        self._record(columns, accepted)
        refused = np.flatnonzero(refusals).tolist()
        return Admission(
            {index: TransactionId(int(estimates[index])) for index in refused}, waiting
        )

    def _may_wait(
        self, appends: LockedAppends, columns: LockColumns, refusals: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which requests have to wait, or could, for what those before them come to.

        All others are accepted, or refused, whatever becomes of the rest.
        """
        decided = self.decided
        uncertain = np.zeros(columns.count, np.bool_)
        owners = columns.owners[:, np.newaxis]
        if columns.checked.any():
            rows = columns.recorded & ~columns.rows_of(refusals)
            claimed = self._earliest(columns, rows) < owners
            claimed |= self._claims.table[columns.slots] > decided
            places = np.flatnonzero(columns.checked & np.logical_and.reduce(claimed, axis=1))
            if len(places):
                is_claimed = self._claims.newest_of(columns.locks[places]) > 0
                if rows.any():
                    is_claimed |= columns.is_recorded_before(places, rows)
                uncertain[columns.owners[places[is_claimed]]] = True
        reserved = np.zeros(columns.slots.shape, np.bool_)
        if self._reservations.until > decided:
            reserved |= self._reservations.table[columns.slots] > decided
            uncertain |= columns.any_lock(np.logical_and.reduce(reserved, axis=1))
            held = [
                each for each, until in self._reservations.client_until.items() if until > decided
            ]
            uncertain |= np.isin(appends.client_ids, np.array(held, np.int64))
        if not uncertain.any():
            return uncertain
        # A later request that shares a lock, or the client, with one that waits, waits as well.
        clients, client_of = np.unique(appends.client_ids, return_inverse=True)
        places = np.arange(columns.count)
        for _ in range(_ROUNDS_MAX):
            known = np.flatnonzero(uncertain)
            backwards = known[::-1].copy()
            first_of_client = np.full(len(clients), columns.count)
            first_of_client[client_of[backwards]] = backwards
            uncertain |= places > first_of_client[client_of]
            first = self._earliest(columns, columns.rows_of(uncertain))
            queued = np.logical_or(reserved, first < owners)
            uncertain |= columns.any_lock(np.logical_and.reduce(queued, axis=1))
            if np.count_nonzero(uncertain) == len(known):
                return uncertain
        uncertain[int(known[0]) :] = True
        return uncertain

    def _earliest(self, columns: LockColumns, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return for each slot of each lock the first request with it in one of the `rows`; the
        number of requests if there is none."""
        base, count = self._firsts_base, columns.count
        self._firsts_base += count
        # Of a repeated slot the last value stays: backwards, that is the first. It is the highest
        # as well, and higher than all of earlier looks: nothing need be cleared for the next one.
        backwards = np.flatnonzero(rows)[::-1]
        first = base + count - columns.owners[backwards]
        self._firsts[columns.slots[backwards]] = first[:, np.newaxis]
        found = self._firsts[columns.slots]
        return np.where(found > base, base + count - found, count)

    def _admit_in_order(
        self,
        appends: LockedAppends,
        columns: LockColumns,
        uncertain: NDArray[np.bool_],
        accepted: NDArray[np.bool_],
    ) -> dict[int, int]:
        """Decide the `uncertain` requests, each of which sees the claims of those before it.

        Completes `accepted` and returns those that wait.
        """
        seen = np.zeros(self._slot_count, np.bool_)
        seen[columns.slots[columns.checked & columns.rows_of(uncertain)]] = True
        claims_seen = columns.recorded & np.logical_or.reduce(seen[columns.slots], axis=1)
        chosen = uncertain | (accepted & columns.any_lock(claims_seen))
        indices = np.flatnonzero(chosen)
        ranks = np.cumsum(accepted)[indices].tolist()
        is_accepted = accepted[indices].tolist()
        others = np.flatnonzero(appends.client_ids != appends.client_ids[-1])
        one_client_from = int(others[-1]) + 1 if len(others) else 0
        waiting: dict[int, int] = {}
        late = 0
        for index, request, rank, is_certain in zip(
            indices.tolist(), appends.pick(chosen).requests(), ranks, is_accepted, strict=True
        ):
            recorded = [*request.write_locks, *request.append_locks]
            if is_certain:
                slots = [lock_slots(lock, self._slot_count) for lock in recorded]
                self._claims.claim(recorded, slots, self.issued + rank + late)
                continue
            slots = []
            verdict = self._check(request, slots)
            if verdict is None:
                late += 1
                accepted[index] = True
                self._claims.claim(recorded, slots, self.issued + rank + late)
            elif verdict.is_wait:
                waiting[index] = verdict.value
                if index >= one_client_from:
                    return waiting | self._queue_up(columns, index + 1, request.client_id)
        return waiting

    def _queue_up(self, columns: LockColumns, first: int, client_id: int) -> dict[int, int]:
        """Have all requests from index `first` on wait, which follow one of their client that does;
        return what for."""
        client = ClientId(client_id)
        rows = slice(int(np.searchsorted(columns.owners, first)), None)
        slots = columns.slots[rows]
        claimed = np.where(columns.checked[rows], self._claims.newest_of(columns.locks[rows]), 0)
        per_lock = np.zeros(len(columns.owners), np.int64)
        per_lock[rows] = np.maximum(claimed, self._reservations.newest_of(slots))
        client_until = self._reservations.client_until[client]
        tickets = np.maximum(columns.max_lock(per_lock, 0)[first:], client_until)
        if not len(tickets):
            return {}
        tickets = np.maximum.accumulate(tickets)
        per_lock_tickets = tickets[columns.owners[rows] - first]
        self._reservations.reserve_all(client, slots, per_lock_tickets, int(tickets[-1]))
        return dict(enumerate(tickets.tolist(), first))

    def _record(self, columns: LockColumns, accepted: NDArray[np.bool_]) -> None:
        """Give the accepted requests their tickets and claim what they record."""
        tickets = np.cumsum(accepted, dtype=np.int64)
        tickets += self.issued
        self.issued = int(tickets[-1])
        chosen = columns.recorded & accepted[columns.owners]
        self._claims.add(
            Claimed(tickets[columns.owners[chosen]], columns.locks[chosen], columns.slots[chosen])
        )
