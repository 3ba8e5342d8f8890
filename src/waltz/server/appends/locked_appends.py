"""Appends as the lock table looks at them: who, how far applied, and which locks; and their slots.

Owns where the slots of a lock are, one by one and by columns. Knows neither marks nor claims.
Source: Waltz Internals, "Optimistic Locking"; the slots are those of the Java original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from waltz.limits import LOCK_TABLE_SLOTS

_MULTIPLIER: Final = 1103515245
_INCREMENT: Final = 12345
_STEP_MASK: Final = 0xFFFFFFFF
_SLOT_MASK: Final = 0x3FFFFFFF


class Request(NamedTuple):
    """One append and its locks."""

    client_id: int
    client_high_water_mark: int
    write_locks: Sequence[int]
    read_locks: Sequence[int]
    append_locks: Sequence[int]


@dataclass(slots=True)
class LockedAppends:
    """The columns of appends that the lock table reads, one entry per append each.

    lock_counts   a row per append: write, read and append locks.
    lock_hashes   the locks of all appends back to back, in the order of the counts.
    """

    client_ids: NDArray[np.int32]
    client_high_water_marks: NDArray[np.int64]
    lock_counts: NDArray[np.uint16]
    lock_hashes: NDArray[np.int32]

    def __len__(self) -> int:
        return self.client_ids.size

    def pick(self, rows: NDArray[np.bool_]) -> LockedAppends:
        """Return those for which `rows` is true."""
        return LockedAppends(
            self.client_ids[rows],
            self.client_high_water_marks[rows],
            self.lock_counts[rows],
            self.lock_hashes[np.repeat(rows, self.lock_counts.sum(axis=1, dtype=np.int64))],
        )

    def requests(self) -> list[Request]:
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
                Request(
                    client_id,
                    mark,
                    hashes[begin:writes],
                    hashes[writes:reads],
                    hashes[reads:appends],
                )
            )
            begin = appends
        return found


SlotTriple: TypeAlias = tuple[int, int, int]


def lock_slots(lock_hash: int, slot_count: int = LOCK_TABLE_SLOTS) -> SlotTriple:
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
class LockColumns:
    """The locks of a batch of requests, one row each, requests in order.

    count     number of requests.
    owners    index of the request.
    locks     hashes.
    slots     three per lock.
    checked   write and read locks.
    recorded  write and append locks.
    lockers   indices of the requests with locks; `starts` their first rows.
    """

    count: int
    owners: NDArray[np.int64]
    locks: NDArray[np.int64]
    slots: NDArray[np.int64]
    checked: NDArray[np.bool_]
    recorded: NDArray[np.bool_]
    lockers: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, appends: LockedAppends, slot_count: int) -> LockColumns:
        count = len(appends)
        kinds = np.repeat(np.tile(np.arange(3), count), appends.lock_counts.ravel())
        per_request = appends.lock_counts.sum(axis=1, dtype=np.int64)
        lockers = np.flatnonzero(per_request)
        locks = appends.lock_hashes.astype(np.int64)
        return cls(
            count=count,
            owners=np.repeat(np.arange(count), per_request),
            locks=locks,
            slots=lock_slot_columns(locks, slot_count),
            checked=kinds != 2,
            recorded=kinds != 1,
            lockers=lockers,
            starts=(np.cumsum(per_request) - per_request)[lockers],
        )

    def is_recorded_before(
        self, places: NDArray[np.int64], rows: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return for the locks at `places` whether an earlier request has the same lock in one of
        the `rows`, of which there is one at least."""
        among = np.flatnonzero(rows)
        order = among[np.argsort(self.locks[among], kind="stable")]
        sorted_locks, wanted = self.locks[order], self.locks[places]
        found = np.minimum(np.searchsorted(sorted_locks, wanted), len(order) - 1)
        is_earlier: NDArray[np.bool_] = self.owners[order[found]] < self.owners[places]
        is_earlier &= sorted_locks[found] == wanted
        return is_earlier

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
