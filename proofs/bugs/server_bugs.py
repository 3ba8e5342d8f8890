"""Seeded bugs of the server: locks, mounts, feeds, flushes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.patches import Patch
from waltz.server.appends.appends import rejected
from waltz.server.appends.gathering import Gathering
from waltz.server.appends.lock_table import LockTable
from waltz.server.appends.reservations import Reservations
from waltz.server.appends.undecided import Undecided
from waltz.server.feeding.transaction_data import DataRequests
from waltz.server.server_partition import ServerPartition
from waltz.wire.batch_protocol import OutcomeRequest, Reason
from waltz.wire.client_protocol import FlushRequest


def _checking(of: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The lock table is shown other appends than the ones there are."""

    def change(admit: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, appends: admit(self, of(appends))

    return change


def _without_kind(kind: int) -> Callable[[Any], Any]:
    """Locks of that kind are left out: 0 write, 1 read, 2 append."""

    def shown(appends: Any) -> Any:
        counts = appends.lock_counts.copy()
        counts[:, kind] = 0
        kept = appends.lock_hashes[_kinds(appends) != kind]
        return replace(appends, lock_counts=counts, lock_hashes=kept)

    return shown


def _kinds(appends: Any) -> Any:
    """The kind of each lock hash: 0 write, 1 read, 2 append."""
    return np.repeat(np.tile(np.arange(3), len(appends)), appends.lock_counts.ravel())


def _first_written(appends: Any) -> Any:
    """Only the first of the locks that an append writes."""
    ends = np.cumsum(appends.lock_counts.ravel(), dtype=np.int64)
    places = np.arange(len(appends.lock_hashes)) - np.repeat(
        ends - appends.lock_counts.ravel(), appends.lock_counts.ravel()
    )
    counts = appends.lock_counts.copy()
    counts[:, 0] = np.minimum(counts[:, 0], 1)
    kept = appends.lock_hashes[(_kinds(appends) != 0) | (places == 0)]
    return replace(appends, lock_counts=counts, lock_hashes=kept)


def _read_elsewhere(appends: Any) -> Any:
    changed = np.where(_kinds(appends) == 1, appends.lock_hashes ^ 0x5555, appends.lock_hashes)
    return replace(appends, lock_hashes=changed.astype(appends.lock_hashes.dtype))


def _one_newer(appends: Any) -> Any:
    return replace(appends, client_high_water_marks=appends.client_high_water_marks + 1)


def _forgetting_claims(admit: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(self: Any, requests: Any) -> Any:
        admission = admit(self, requests)
        self._claims.table.fill(0)
        return admission

    return admitted


def _forgetting_claims_once_committed(commit: Callable[..., None]) -> Callable[..., None]:
    def committed(self: Any, *arguments: Any) -> None:
        commit(self, *arguments)
        self._claims.table.fill(0)

    return committed


def _deciding_only(_: Callable[..., None]) -> Callable[..., None]:
    def committed(self: Any, first_transaction_id: int, count: int) -> None:
        self._decide(count)

    return committed


def _overtaking(reserve: Callable[..., None]) -> Callable[..., None]:
    def reserved(self: Any, request: Any, until: int) -> None:
        reserve(self, request, until)
        self.client_until.clear()

    return reserved


def _passing_at_once(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def change(pass_barriers: Callable[..., None]) -> Callable[..., None]:
        def passed(self: Any) -> None:
            if self.high_water_mark is not None:
                barriers = self._barriers
                for barrier in [b for b in barriers.behind if isinstance(b.request, kind)]:
                    barriers.behind.remove(barrier)
                    barriers.ahead.appendleft((self._locks.decided, barrier))
            pass_barriers(self)

        return passed

    return change


def _refusing_what_waits(admit: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(self: Any, now: float) -> Any:
        found = admit(self, now)
        if self._waiting is None:
            return found
        told = rejected(self._waiting.senders, Reason.NOT_COMMITTED)
        return found._replace(answers=[*found.answers, *told])

    return admitted


def _without_a_deadline(waits: Callable[..., Any]) -> Callable[..., Any]:
    def waits_on(self: Any, now: float) -> Any:
        """Wait until something else happens in the partition."""
        found = waits(self, now)
        self.deadline = None
        return found

    return waits_on


def _forgetting_those_that_gather(_: property) -> property:
    def oldest(self: Any) -> int:
        waiting = self._waiting
        return self.arrival_count + 1 if waiting is None else int(waiting.arrivals[0])

    return property(oldest)


def _naming_the_next(estimates: Callable[..., Any]) -> Callable[..., Any]:
    def told(senders: Any, locked: Any) -> Any:
        return estimates(senders, [(mark + 1, lock) for mark, lock in locked])

    return told


SERVER_BUGS: Final = (
    Bug(
        name="a partition that comes back keeps its clients",
        breaks="I5 verdicts",
        patches=(Patch(ServerPartition, "_cut_off_mounted", forgotten),),
        workloads=("append",),
        plans=("moving_partitions",),
        caught=Scene(4, "append", "moving_partitions"),
    ),
    Bug(
        name="locks of undecided appends are not seen",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _forgetting_claims),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(2, "lock_contention", "none"),
    ),
    Bug(
        name="a commit forgets what else is in flight",
        breaks="I7 locks",
        patches=(Patch(LockTable, "commit", _forgetting_claims_once_committed),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(3, "bank", "none"),
    ),
    Bug(
        name="committed locks are not recorded",
        breaks="I7 locks",
        patches=(Patch(LockTable, "commit", _deciding_only),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="of several locks only the first one counts",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(_first_written)),),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="locks that are read are looked for where nobody writes them",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(_read_elsewhere)),),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="a new owner knows nothing of earlier locks",
        breaks="I7 locks",
        patches=(Patch(LockTable, "raise_marks", forgotten),),
        workloads=("bank",),
        plans=("moving_partitions", "server_crash"),
        caught=Scene(2, "bank", "moving_partitions"),
    ),
    Bug(
        name="failed appends stay undecided",
        breaks="I12 convergence",
        patches=(Patch(LockTable, "fail", forgotten),),
        workloads=("append", "bank"),
        plans=("contested_partition",),
        caught=Scene(2027, "bank", "contested_partition"),
    ),
    Bug(
        name="append locks are not recorded",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(_without_kind(2))),),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="read locks are not checked",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(_without_kind(1))),),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="a lock that is one transaction newer passes",
        breaks="I7 locks",
        patches=(
            Patch(
                LockTable,
                "admit",
                _checking(_one_newer),
            ),
        ),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(0, "lock_contention", "none"),
    ),
    Bug(
        name="a client's append overtakes an earlier one that waits",
        breaks="I5 verdicts",
        patches=(Patch(Reservations, "reserve", _overtaking),),
        workloads=("append", "lock_contention"),
        plans=("power_cut",),
        caught=Scene(1036, "append", "power_cut"),
    ),
    Bug(
        name="a flush is answered while earlier appends are undecided",
        breaks="I5 verdicts",
        patches=(Patch(ServerPartition, "_pass_barriers", _passing_at_once(FlushRequest)),),
        workloads=("bank",),
        plans=("isolation", "one_way"),
        caught=Scene(23, "bank", "one_way"),
    ),
    Bug(
        name="a mount is answered while earlier appends are undecided",
        breaks="I5 verdicts",
        patches=(Patch(ServerPartition, "_pass_barriers", _passing_at_once(object)),),
        workloads=("append",),
        plans=("flapping",),
        caught=Scene(4, "append", "flapping"),
    ),
    Bug(
        name="an append that waits for a lock is told to be refused",
        breaks="I5 verdicts",
        patches=(Patch(Undecided, "admit", _refusing_what_waits),),
        workloads=("lock_contention", "bank"),
        plans=("none", "flapping"),
        caught=Scene(1, "lock_contention", "flapping"),
    ),
    Bug(
        name="appends that wait for others do so without end",
        breaks="lateness",
        patches=(Patch(Gathering, "waits", _without_a_deadline),),
        workloads=("append", "bank"),
        plans=("none",),
        caught=Scene(0, "append", "none"),
    ),
    Bug(
        name="what asks for decisions overtakes appends that wait for others",
        breaks="I13 outcomes",
        patches=(Patch(Undecided, "oldest_waiting", _forgetting_those_that_gather),),
        workloads=("bank", "crowd"),
        plans=("none", "flapping", "slow_disk"),
        caught=Scene(20, "crowd", "none"),
    ),
    Bug(
        name="an outcome is told while earlier appends are undecided",
        breaks="I13 outcomes",
        patches=(Patch(ServerPartition, "_pass_barriers", _passing_at_once(OutcomeRequest)),),
        workloads=("append", "bank"),
        plans=("none", "flapping", "slow_disk"),
        caught=Scene(3, "append", "slow_disk"),
    ),
    Bug(
        name="a refusal names the transaction after the one that holds the lock",
        breaks="I8 lock progress",
        patches=(
            Patch(
                __import__("waltz.server.appends.undecided", fromlist=["x"]),
                "locked_out",
                _naming_the_next,
            ),
        ),
        workloads=("lock_contention",),
        plans=("none",),
        caught=Scene(4, "lock_contention", "none"),
    ),
    Bug(
        name="data asked for over a full connection are never sent",
        breaks="I12 convergence",
        patches=(Patch(DataRequests, "resume", forgotten),),
        workloads=("slow_consumer",),
        plans=("none",),
        caught=Scene(1047, "slow_consumer", "none"),
    ),
)
