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

COLUMNS_MIN: Final = 64
"""Requests from which checking them by columns is faster than one after the other."""


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

    def requests(self, start: int = 0) -> list[_Request]:
        """One by one, from index `start` on."""
        ends = np.cumsum(self.lock_counts[start:])
        ends += int(self.lock_counts[:start].sum())
        hashes = self.lock_hashes.tolist()
        ends_by_kind = ends.reshape(-1, 3).tolist()
        begin = int(self.lock_counts[:start].sum())
        found = []
        for client_id, mark, (writes, reads, appends) in zip(
            self.client_ids[start:].tolist(),
            self.client_high_water_marks[start:].tolist(),
            ends_by_kind,
            strict=True,
        ):
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

    def shared_slots(self) -> NDArray[np.bool_]:
        """Return which slots belong to another request of the batch too; three per lock."""
        slots = self.slots.ravel()
        order = np.argsort(slots, kind="stable")
        slots = slots[order]
        owners = np.repeat(self.owners, 3)[order]
        # Equal slots lie side by side, requests in order: a run is shared if its ends differ.
        starts = np.flatnonzero(
            np.concatenate(([True] * bool(len(slots)), slots[1:] != slots[:-1]))
        )
        lengths = np.diff(starts, append=len(slots))
        is_shared = owners[starts] != owners[starts + lengths - 1]
        shared = np.empty(len(slots), np.bool_)
        shared[order] = np.repeat(is_shared, lengths)
        return shared.reshape(-1, 3)

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
        return self._admit_many(appends)

    def refusing_lock(self, appends: LockedAppends, index: int) -> int:
        """Return the hash of the lock for which an append has just been refused; 0 for one that
        was refused for its mark alone."""
        _, _, writes, reads, _ = appends.pick(np.arange(len(appends)) == index).requests()[0]
        return max((*writes, *reads), key=self._estimate, default=0)

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

    def _admit_many(self, appends: LockedAppends) -> Admission:
        """Check by columns up to the first request that has to wait, then one by one."""
        count, refused = self._admit_by_columns(appends)
        if count == len(appends):
            return Admission(refused, {})
        rest = self._admit_one_by_one(appends.requests(count))
        refused |= {count + index: estimate for index, estimate in rest.refused.items()}
        return Admission(refused, {count + index: until for index, until in rest.waiting.items()})

    def _admit_by_columns(self, appends: LockedAppends) -> tuple[int, dict[int, TransactionId]]:
        """Decide `appends` up to the first that has to wait; return their number and the refused.

        What the others in the batch cannot influence is decided at once, the rest in order.
        """
        if self._reserved_until > self.decided:
            return 0, {}
        count = len(appends)
        columns = _LockColumns.of(appends, self._slot_count)
        claims = self._claims[columns.slots]
        shared = columns.shared_slots()
        shares = np.logical_or.reduce(shared, axis=1)
        busy = np.logical_and.reduce(shared | (claims > self.decided), axis=1)
        entangled = columns.any_lock(shares & busy)
        per_lock = np.where(columns.checked, claims.min(axis=1), 0)
        waits = columns.max_lock(per_lock, 0) > self.decided
        per_lock = np.where(columns.checked, self._marks[columns.slots].min(axis=1), NOTHING)
        estimates = columns.max_lock(per_lock, NOTHING)
        refusals = estimates > appends.client_high_water_marks
        accepted = ~(waits | refusals | entangled)
        if waits.any():
            count = int(np.argmax(waits))
        if entangled[:count].any():
            in_order = np.flatnonzero(entangled | columns.any_lock(shares))
            in_order = in_order[in_order < count]
            requests = appends.requests()
            count = self._admit_in_order(requests, in_order.tolist(), accepted, refusals, count)
        accepted[count:] = False
        self._record(columns, accepted)
        refused = np.flatnonzero(refusals[:count]).tolist()
        return count, {index: TransactionId(int(estimates[index])) for index in refused}

    def _admit_in_order(
        self,
        requests: Sequence[_Request],
        indices: Sequence[int],
        accepted: NDArray[np.bool_],
        refusals: NDArray[np.bool_],
        count: int,
    ) -> int:
        """Decide those of `indices` that are not accepted yet, seeing the claims of those before.

        Completes `accepted` and returns the index of the first that has to wait, or `count`. The
        estimate of a refusal stands: nobody in the batch has moved a mark.
        """
        before = np.cumsum(accepted).tolist()
        late = 0
        for index in indices:
            request = requests[index]
            ticket = self.issued + before[index] + late
            if accepted[index]:
                self._claim(self._recorded(request), ticket)
            elif self._claimed_until(request) > self.decided:
                return index
            elif not refusals[index]:
                late += 1
                accepted[index] = True
                self._claim(self._recorded(request), ticket + 1)
        return count

    def _claimed_until(self, request: _Request) -> int:
        """Return the newest ticket that claims a lock which `request` checks."""
        claim_at = self._claim_at
        return max(
            (
                min(claim_at[slot] for slot in lock_slots(lock, self._slot_count))
                for locks in (request.write_locks, request.read_locks)
                for lock in locks
            ),
            default=0,
        )

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
