"""Optimistic locks of one partition: marks, claims and reservations per slot of a table.

A lock hash has three slots. What it was last written by is estimated as the smallest of their
marks, so the table may refuse a request that an exact list of locks would pass, never the reverse.
Every accepted request gets a *ticket*, counted up in the order in which requests go to the store,
which decides them in that same order. A slot is spoken for until a ticket is decided:

    claim        ticket of the newest accepted request that will move the slot's mark
    reservation  ticket that the newest waiting request with this slot waits for

so nothing is ever released by hand, and whoever waits knows which ticket to wait for. Like a mark,
a claim counts for a lock only as far as all three slots bear it out. Knows nothing of clients,
messages or the store. Source: Waltz Internals, "Optimistic Locking".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from waltz.limits import LOCK_TABLE_SLOTS
from waltz.types import NOTHING, ClientId, TransactionId

_MULTIPLIER: Final = 1103515245
_INCREMENT: Final = 12345
_STEP_MASK: Final = 0xFFFFFFFF
_SLOT_MASK: Final = 0x3FFFFFFF

COLUMNS_MIN: Final = 32
"""Requests from which checking them by columns is faster than one after the other."""

_ROUNDS_MAX: Final = 8
"""So often it is looked who else waits if one does, until one by one is as fast."""


class _Request(NamedTuple):
    """One append and its locks."""

    client_id: int
    client_high_water_mark: int
    write_locks: Sequence[int]
    read_locks: Sequence[int]
    append_locks: Sequence[int]


@dataclass(frozen=True, slots=True)
class LockedAppends:
    """What the table wants to know of appends, one entry per column each.

    lock_counts   a row per append: write, read and append locks.
    lock_hashes   those of all appends back to back, in the order of the counts.
    """

    client_ids: NDArray[np.int32]
    client_high_water_marks: NDArray[np.int64]
    lock_counts: NDArray[np.int64]
    lock_hashes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.client_ids)

    def pick(self, rows: NDArray[np.bool_]) -> LockedAppends:
        """Return those for which `rows` is true."""
        return LockedAppends(
            self.client_ids[rows],
            self.client_high_water_marks[rows],
            self.lock_counts[rows],
            self.lock_hashes[np.repeat(rows, self.lock_counts.sum(axis=1))],
        )

    def requests(self) -> list[_Request]:
        """One by one."""
        hashes = self.lock_hashes.tolist()
        found = []
        begin = 0
        for client_id, mark, (writes, reads, appends) in zip(
            self.client_ids.tolist(),
            self.client_high_water_marks.tolist(),
            self.lock_counts.tolist(),
            strict=True,
        ):
            writes += begin
            reads += writes
            appends += reads
            found.append(
                _Request(
                    client_id,
                    mark,
                    hashes[begin:writes],
                    hashes[writes:reads],
                    hashes[reads:appends],
                )
            )
            begin = appends
        return found


class Admission(NamedTuple):
    """What became of a batch of requests, by index; a request in neither map was accepted.

    refused   index -> ID of the transaction estimated to hold a lock.
    waiting   index -> ticket to wait for before the request is checked again.
    """

    refused: dict[int, TransactionId]
    waiting: dict[int, int]


_ALL_ACCEPTED: Final = Admission({}, {})


@dataclass(frozen=True, slots=True)
class _Claims:
    """Slots whose marks move when their tickets commit; one ticket per slot, ascending."""

    tickets: Sequence[int] | NDArray[np.int64]
    slots: Sequence[int] | NDArray[np.int64]


class _Verdict(NamedTuple):
    """Why a request does not pass: the ticket to wait for, or the estimate that refuses it."""

    is_wait: bool
    value: int


_SlotTriple: TypeAlias = tuple[int, int, int]


def lock_slots(lock_hash: int, slot_count: int = LOCK_TABLE_SLOTS) -> _SlotTriple:
    """Return the three slots of a lock: one chained linear congruential generator, no seed."""
    first = (lock_hash * _MULTIPLIER + _INCREMENT) & _STEP_MASK
    second = (first * _MULTIPLIER + _INCREMENT) & _STEP_MASK
    third = (second * _MULTIPLIER + _INCREMENT) & _STEP_MASK
    return (
        (first & _SLOT_MASK) % slot_count,
        (second & _SLOT_MASK) % slot_count,
        (third & _SLOT_MASK) % slot_count,
    )


def lock_slot_columns(
    lock_hashes: Sequence[int] | NDArray[np.int64], slot_count: int
) -> NDArray[np.int64]:
    """Return one row of three slots per lock, as `lock_slots` does."""
    step = np.asarray(lock_hashes, np.int64).astype(np.uint32)
    slots = np.empty((len(step), 3), np.int64)
    for column in range(3):
        step = step * np.uint32(_MULTIPLIER) + np.uint32(_INCREMENT)
        slots[:, column] = (step & np.uint32(_SLOT_MASK)) % np.uint32(slot_count)
    return slots


@dataclass(frozen=True, slots=True)
class _LockColumns:
    """The locks of a batch of requests, one row each, requests in order.

    count     number of requests.
    owners    index of the request.
    slots     three per lock.
    checked   write and read locks.
    recorded  write and append locks.
    lockers   indices of the requests with locks; `starts` their first rows.
    """

    count: int
    owners: NDArray[np.int64]
    slots: NDArray[np.int64]
    checked: NDArray[np.bool_]
    recorded: NDArray[np.bool_]
    lockers: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, appends: LockedAppends, slot_count: int) -> _LockColumns:
        count = len(appends)
        kinds = np.repeat(np.tile(np.arange(3), count), appends.lock_counts.ravel())
        per_request = appends.lock_counts.sum(axis=1)
        lockers = np.flatnonzero(per_request)
        return cls(
            count=count,
            owners=np.repeat(np.arange(count), per_request),
            slots=lock_slot_columns(appends.lock_hashes, slot_count),
            checked=kinds != 2,
            recorded=kinds != 1,
            lockers=lockers,
            starts=(np.cumsum(per_request) - per_request)[lockers],
        )

    def earliest(self, rows: NDArray[np.bool_], slot_count: int) -> NDArray[np.int64]:
        """Return for each slot the first request with it in one of the `rows`; `count` if none."""
        found = np.full(slot_count, self.count)
        # Of a repeated slot the last value stays: backwards, that is the first.
        backwards = np.flatnonzero(rows)[::-1]
        found[self.slots[backwards].ravel()] = np.repeat(self.owners[backwards], 3)
        return found

    def rows_of(self, requests: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each lock whether its request is among `requests`."""
        return requests[self.owners]

    def any_lock(self, per_lock: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each request whether any of its locks has the property."""
        per_request = np.zeros(self.count, np.bool_)
        per_request[self.owners[per_lock]] = True
        return per_request

    def max_lock(self, per_lock: NDArray[np.int64], without: int) -> NDArray[np.int64]:
        """Return for each request the highest value of its locks; `without` where it has none."""
        per_request = np.full(self.count, without, np.int64)
        if len(per_lock):
            per_request[self.lockers] = np.maximum.reduceat(per_lock, self.starts)
        return per_request


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

    def __init__(self, high_water_mark: TransactionId, slot_count: int = LOCK_TABLE_SLOTS) -> None:
        self._slot_count = slot_count
        self._marks = np.full(slot_count, high_water_mark, np.int64)
        self._claims = np.zeros(slot_count, np.int64)
        self._reservations = np.zeros(slot_count, np.int64)
        # Single elements are read and written through views: three times as fast as through numpy.
        self._mark_at = self._marks.data
        self._claim_at = self._claims.data
        self._reservation_at = self._reservations.data
        self._reserved_until = 0
        self._client_until: dict[ClientId, int] = {}
        self._accepted: deque[_Claims] = deque()
        self.issued = 0
        """Tickets given so far; the newest ticket."""
        self.decided = 0
        """The newest ticket whose outcome is known; so are those of all before it."""

    def admit(self, appends: LockedAppends) -> Admission:
        """Check `appends` in order; accepted ones take the next tickets, in order."""
        if len(appends) < COLUMNS_MIN:
            return self._admit_one_by_one(appends.requests())
        return self._admit_by_columns(appends)

    def refusing_locks(self, appends: LockedAppends) -> list[int]:
        """Return for each of `appends`, which have just been refused, the hash of the lock for
        which; 0 for one that was refused for its mark alone."""
        return [
            max((*writes, *reads), key=self._estimate, default=0)
            for _, _, writes, reads, _ in appends.requests()
        ]

    def _estimate(self, lock: int) -> int:
        """Return the ID of the transaction that has last written the lock, or of a later one."""
        return min(self._mark_at[slot] for slot in lock_slots(lock, self._slot_count))

    def commit(self, first_transaction_id: TransactionId, count: int) -> None:
        """The `count` oldest undecided requests have the IDs from `first_transaction_id` on."""
        shift = first_transaction_id - self.decided - 1
        for claims in self._decide(count):
            if isinstance(claims.tickets, np.ndarray):
                # Tickets ascend, and of a repeated slot the last value stays: the newest.
                self._marks[claims.slots] = claims.tickets + shift
            else:
                for ticket, slot in zip(claims.tickets, claims.slots, strict=True):
                    self._mark_at[slot] = ticket + shift

    def fail(self, count: int) -> None:
        """The `count` oldest undecided requests are not in the log and never will be."""
        self._decide(count)

    def forget_reservations(self) -> None:
        """Let all that wait be checked afresh: the caller admits them again, in order of arrival,
        ahead of anything new. What arrived later must not hold up what arrived earlier."""
        if self._reserved_until:
            self._reservations.fill(0)
            self._reserved_until = 0
            self._client_until.clear()

    def raise_marks(self, high_water_mark: TransactionId) -> None:
        """Treat every lock as written by `high_water_mark`: others may have written up to it."""
        np.maximum(self._marks, high_water_mark, out=self._marks)

    def check_invariants(self) -> None:
        assert 0 <= self.decided <= self.issued
        last = self.decided
        for claims in self._accepted:
            assert len(claims.tickets) == len(claims.slots) > 0
            for ticket in claims.tickets:
                assert last <= ticket
                last = int(ticket)
            assert claims.tickets[0] > self.decided
        assert last <= self.issued
        assert int(self._claims.max()) <= self.issued
        assert int(self._reservations.max()) <= self._reserved_until <= self.issued

    # Deciding

    def _decide(self, count: int) -> list[_Claims]:
        """Move `decided` on and return what the decided requests claimed."""
        decided = self.decided + count
        assert decided <= self.issued, f"{decided} decided of {self.issued}"
        settled: list[_Claims] = []
        accepted = self._accepted
        while accepted and accepted[0].tickets[0] <= decided:
            claims = accepted.popleft()
            if claims.tickets[-1] <= decided:
                settled.append(claims)
                continue
            cut = bisect_right(claims.tickets, decided)
            settled.append(_Claims(claims.tickets[:cut], claims.slots[:cut]))
            accepted.appendleft(_Claims(claims.tickets[cut:], claims.slots[cut:]))
        self.decided = decided
        return settled

    # One by one

    def _admit_one_by_one(self, requests: Sequence[_Request]) -> Admission:
        refused: dict[int, TransactionId] = {}
        waiting: dict[int, int] = {}
        tickets: list[int] = []
        slots: list[int] = []
        for index, request in enumerate(requests):
            recorded: list[int] = []
            verdict = self._check(request, recorded)
            if verdict is None:
                self.issued += 1
                self._claim(recorded, self.issued)
                slots += recorded
                tickets += [self.issued] * len(recorded)
            elif verdict.is_wait:
                waiting[index] = verdict.value
            else:
                refused[index] = TransactionId(verdict.value)
        if tickets:
            self._accepted.append(_Claims(tickets, slots))
        return Admission(refused, waiting) if refused or waiting else _ALL_ACCEPTED

    def _check(self, request: _Request, recorded: list[int]) -> _Verdict | None:
        """Return None if `request` passes, with its slots to claim added to `recorded`; reserve its
        slots if it has to wait."""
        estimate: int = NOTHING
        decided = until = self.decided
        mark_at, claim_at, slot_count = self._mark_at, self._claim_at, self._slot_count
        for lock in request.write_locks:
            slots = a, b, c = lock_slots(lock, slot_count)
            until = max(until, min(claim_at[a], claim_at[b], claim_at[c]))
            estimate = max(estimate, min(mark_at[a], mark_at[b], mark_at[c]))
            recorded += slots
        for lock in request.read_locks:
            a, b, c = lock_slots(lock, slot_count)
            until = max(until, min(claim_at[a], claim_at[b], claim_at[c]))
            estimate = max(estimate, min(mark_at[a], mark_at[b], mark_at[c]))
        for lock in request.append_locks:
            recorded += lock_slots(lock, slot_count)
        if self._reserved_until > decided:
            until = max(until, self._reserved(request))
            until = max(until, self._client_until.get(ClientId(request.client_id), 0))
        if until > decided:
            self._reserve(request, until)
            return _Verdict(True, until)
        if estimate > request.client_high_water_mark:
            return _Verdict(False, estimate)
        return None

    def _reserved(self, request: _Request) -> int:
        """Return the newest ticket that an earlier request with a lock of this one waits for."""
        reservation_at = self._reservation_at
        return max(
            (min(reservation_at[slot] for slot in slots) for slots in self._triples(request)),
            default=0,
        )

    def _claim(self, slots: Sequence[int], ticket: int) -> None:
        claim_at = self._claim_at
        for slot in slots:
            claim_at[slot] = ticket

    def _reserve(self, request: _Request, until: int) -> None:
        reservation_at = self._reservation_at
        for slots in self._triples(request):
            for slot in slots:
                reservation_at[slot] = max(reservation_at[slot], until)
        self._reserved_until = max(self._reserved_until, until)
        client_id = ClientId(request.client_id)
        self._client_until[client_id] = max(self._client_until.get(client_id, 0), until)

    def _triples(self, request: _Request) -> list[_SlotTriple]:
        """Return the slots of every lock of `request`."""
        return [
            lock_slots(lock, self._slot_count)
            for locks in (request.write_locks, request.read_locks, request.append_locks)
            for lock in locks
        ]

    # By columns

    def _admit_by_columns(self, appends: LockedAppends) -> Admission:
        """Check all at once; only those that wait, or may have to, one by one, in order."""
        columns = _LockColumns.of(appends, self._slot_count)
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
        self, appends: LockedAppends, columns: _LockColumns, refusals: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which requests have to wait, or could, for what those before them come to.

        All others are accepted, or refused, whatever becomes of the rest.
        """
        decided = self.decided
        uncertain = np.zeros(columns.count, np.bool_)
        owners = columns.owners[:, np.newaxis]
        if columns.checked.any():
            rows = columns.recorded & ~columns.rows_of(refusals)
            claimed = columns.earliest(rows, self._slot_count)[columns.slots] < owners
            claimed |= self._claims[columns.slots] > decided
            uncertain |= columns.any_lock(columns.checked & np.logical_and.reduce(claimed, axis=1))
        reserved = np.zeros(columns.slots.shape, np.bool_)
        if self._reserved_until > decided:
            reserved |= self._reservations[columns.slots] > decided
            uncertain |= columns.any_lock(np.logical_and.reduce(reserved, axis=1))
            held = [each for each, until in self._client_until.items() if until > decided]
            uncertain |= np.isin(appends.client_ids, np.array(held, np.int64))
        if not uncertain.any():
            return uncertain
        # Whoever shares a lock with one that waits, or its client, and comes later, waits as well.
        clients, client_of = np.unique(appends.client_ids, return_inverse=True)
        places = np.arange(columns.count)
        for _ in range(_ROUNDS_MAX):
            known = np.flatnonzero(uncertain)
            backwards = known[::-1].copy()
            first_of_client = np.full(len(clients), columns.count)
            first_of_client[client_of[backwards]] = backwards
            uncertain |= places > first_of_client[client_of]
            first = columns.earliest(columns.rows_of(uncertain), self._slot_count)
            queued = np.logical_or(reserved, first[columns.slots] < owners)
            uncertain |= columns.any_lock(np.logical_and.reduce(queued, axis=1))
            if np.count_nonzero(uncertain) == len(known):
                return uncertain
        uncertain[int(known[0]) :] = True
        return uncertain

    def _admit_in_order(
        self,
        appends: LockedAppends,
        columns: _LockColumns,
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
            if is_certain:
                self._claim(self._recorded(request), self.issued + rank + late)
                continue
            recorded: list[int] = []
            verdict = self._check(request, recorded)
            if verdict is None:
                late += 1
                accepted[index] = True
                self._claim(recorded, self.issued + rank + late)
            elif verdict.is_wait:
                waiting[index] = verdict.value
                if index >= one_client_from:
                    return waiting | self._queue_up(columns, index + 1, request.client_id)
        return waiting

    def _queue_up(self, columns: _LockColumns, first: int, client_id: int) -> dict[int, int]:
        """Have all requests from index `first` on wait, which follow one of their client that does;
        return what for."""
        client = ClientId(client_id)
        rows = slice(int(np.searchsorted(columns.owners, first)), None)
        slots = columns.slots[rows]
        claimed = np.where(columns.checked[rows], self._claims[slots].min(axis=1), 0)
        per_lock = np.zeros(len(columns.owners), np.int64)
        per_lock[rows] = np.maximum(claimed, self._reservations[slots].min(axis=1))
        tickets = np.maximum(columns.max_lock(per_lock, 0)[first:], self._client_until[client])
        if not len(tickets):
            return {}
        tickets = np.maximum.accumulate(tickets)
        # They ascend, and of a repeated slot the last value stays: the highest.
        flat = slots.ravel()
        per_slot = np.repeat(tickets[columns.owners[rows] - first], 3)
        self._reservations[flat] = np.maximum(self._reservations[flat], per_slot)
        last = int(tickets[-1])
        self._client_until[client] = last
        self._reserved_until = max(self._reserved_until, last)
        return dict(enumerate(tickets.tolist(), first))

    def _recorded(self, request: _Request) -> list[int]:
        """Return the slots that `request` claims."""
        return [
            slot
            for locks in (request.write_locks, request.append_locks)
            for lock in locks
            for slot in lock_slots(lock, self._slot_count)
        ]

    def _record(self, columns: _LockColumns, accepted: NDArray[np.bool_]) -> None:
        """Give the accepted requests their tickets and claim what they record."""
        tickets = np.cumsum(accepted, dtype=np.int64)
        tickets += self.issued
        self.issued = int(tickets[-1])
        chosen = columns.recorded & accepted[columns.owners]
        if chosen.any():
            slots = columns.slots[chosen].ravel()
            slot_tickets = np.repeat(tickets[columns.owners[chosen]], 3)
            self._claims[slots] = slot_tickets
            self._accepted.append(_Claims(slot_tickets, slots))
