"""Appends from their arrival to their outcome: arrived, waiting for a lock, handed to the store.

`gathering.py` decides how long those that have arrived wait for others.

Owns these three places and what their senders are told when a lock refuses them. Knows neither
mounts nor generations: whatever comes here counts. Always: what of one client goes to the store
goes in the order in which it arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from waltz.record import NewRecords
from waltz.server.appends.appends import (
    Appends,
    InFlight,
    Senders,
    join_appends,
    locked_out,
    of_batches,
)
from waltz.server.appends.gathering import Gathering
from waltz.server.appends.lock_table import LockTable
from waltz.server.appends.refusals import Refusals
from waltz.server.appends.stage_seconds import ArrivalTimes, StageSeconds
from waltz.server.feeding.backlog import Backlog
from waltz.types import TransactionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected


class Admitted(NamedTuple):
    """The result of one check of the locks: records for the store, and answers per connection."""

    records: NewRecords | None
    refused_count: int
    answers: Sequence[tuple[int, AppendRejected]]


NOTHING_ADMITTED = Admitted(None, 0, ())


class Undecided:
    """The appends of one partition that have no outcome yet."""

    def __init__(self, locks: LockTable, backlog: Backlog) -> None:
        self.arrival_count = 0
        self.refusals = Refusals()
        self.seconds = StageSeconds()
        self._arrival_times = ArrivalTimes()
        self._locks = locks
        self._backlog = backlog
        self._arrivals: list[Appends] = []
        self._gathering = Gathering()
        self._waiting: Appends | None = None
        self._waiting_until = 0
        self._in_flight = InFlight()

    def __len__(self) -> int:
        waiting = 0 if self._waiting is None else len(self._waiting)
        return self._gathering.count + waiting + len(self._in_flight)

    @property
    def byte_count(self) -> int:
        waiting = self._waiting
        waiting_bytes = 0 if waiting is None else waiting.senders.byte_count
        arrived_bytes = sum(each.senders.byte_count for each in self._arrivals)
        return arrived_bytes + waiting_bytes + self._in_flight.byte_count

    @property
    def oldest_waiting(self) -> int:
        """The arrival of the oldest that has not gone to the store; one that is to come if none."""
        if self._waiting is not None:
            return int(self._waiting.arrivals[0])
        if self._arrivals:
            return int(self._arrivals[0].arrivals[0])
        return self.arrival_count + 1

    @property
    def deadline(self) -> float | None:
        """The time at which to check the locks of what has arrived, if nothing happens before."""
        return self._gathering.deadline

    def take(self, messages: Sequence[AppendBatch], connection_id: int, now: float) -> None:
        """Take the appends of one connection, at least one message of them."""
        appends = of_batches(messages, connection_id, self.arrival_count + 1)
        count = appends.arrivals.size
        self.arrival_count += count
        self._arrival_times.add(self.arrival_count, now)
        self._arrivals.append(appends)
        byte_count = appends.senders.byte_count
        self._backlog.add(connection_id, byte_count, count)
        self._gathering.arrive(connection_id, count, byte_count, now)

    def admit(self, now: float) -> Admitted:
        """Check the locks of what need not wait any longer: of all that has arrived, as soon as it
        goes on or something that waited for a lock does."""
        is_unlocked = self._waiting is not None and self._locks.decided >= self._waiting_until
        if self._gathering.waits(now) and not is_unlocked:
            return NOTHING_ADMITTED
        arrived = self._arrivals
        if self._waiting is not None and is_unlocked:
            self._locks.forget_reservations()
            arrived = [self._waiting, *arrived]
            self._waiting = None
        if not arrived:
            return NOTHING_ADMITTED
        self._arrivals = []
        self._gathering.release()
        candidates = join_appends(arrived)
        admission = self._locks.admit(candidates.locks)
        answers: Sequence[tuple[int, AppendRejected]] = ()
        if admission.waiting or admission.refused:
            is_waiting = np.zeros(len(candidates), np.bool_)
            is_waiting[list(admission.waiting)] = True
            is_refused = np.zeros(len(candidates), np.bool_)
            is_refused[list(admission.refused)] = True
            if admission.waiting:
                self._wait(candidates.pick(is_waiting), min(admission.waiting.values()))
            if admission.refused:
                answers = list(self._refuse(candidates.pick(is_refused), admission.refused, now))
            candidates = candidates.pick(~(is_waiting | is_refused))
        if candidates.arrivals.size:
            arrived_at = self._arrival_times.find(int(candidates.arrivals[0]))
            self.seconds.wait.add(now - arrived_at)
        if self._waiting is None:
            self._arrival_times.forget_all()
        else:
            self._arrival_times.forget_before(self.oldest_waiting)
        if not candidates.arrivals.size:
            return Admitted(None, len(admission.refused), answers)
        self._in_flight.add(candidates.senders)
        self._gathering.store(len(candidates), now)
        return Admitted(candidates.records, len(admission.refused), answers)

    def _wait(self, appends: Appends, until: int) -> None:
        """Check these again once the ticket `until` is decided, those that wait already first."""
        if self._waiting is None:
            self._waiting, self._waiting_until = appends, until
        else:
            self._waiting = join_appends([self._waiting, appends])
            self._waiting_until = min(self._waiting_until, until)

    def _refuse(
        self, appends: Appends, refused: Mapping[int, TransactionId], now: float
    ) -> Iterator[tuple[int, AppendRejected]]:
        """Tell the senders of `appends`; `refused` has the estimates in the same order."""
        senders = appends.senders
        for connection_id, byte_count in zip(
            senders.connection_ids.tolist(), senders.byte_counts.tolist(), strict=True
        ):
            self._backlog.settle(connection_id, byte_count)
            self._gathering.tell(connection_id, 1, now)
        locks = self._locks.refusing_locks(appends.locks)
        self.refusals.add(senders.request_ids, locks, now)
        told = [(won, lock.lock_hash) for won, lock in zip(refused.values(), locks, strict=True)]
        return locked_out(senders, told)

    def decide(self, count: int, now: float, *, is_committed: bool) -> list[tuple[int, Senders]]:
        """The `count` oldest appends that the store has are decided; return their senders, in runs
        of one connection."""
        self._gathering.decide(count, now, self.seconds.store if is_committed else None)
        decided = self._in_flight.decide(count)
        for connection_id, senders in decided:
            size = senders.connection_ids.size
            self._backlog.settle(connection_id, senders.byte_count, size)
            self._gathering.tell(connection_id, size, now)
        return decided

    def forget(self, connection_id: int) -> None:
        """The connection is gone. Its appends go their way, and nobody waits for more of them."""
        self._gathering.forget(connection_id)

    def abandon(self) -> list[Senders]:
        """Forget the appends that the store has not seen, which are not in the log, and return
        their senders."""
        waiting = [] if self._waiting is None else [self._waiting]
        abandoned = [appends.senders for appends in (*waiting, *self._arrivals)]
        self._arrivals.clear()
        self._gathering.release()
        return abandoned

    def check_invariants(self) -> None:
        assert self._gathering.count == sum(map(len, self._arrivals))
        self._gathering.check_invariants()
        assert len(self._in_flight) == self._locks.issued - self._locks.decided
        waiting = self._waiting
        if waiting is not None:
            assert len(waiting)
            assert np.all(np.diff(waiting.arrivals) > 0)
            assert self._waiting_until > self._locks.decided
