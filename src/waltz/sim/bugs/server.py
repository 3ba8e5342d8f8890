"""Seeded bugs of the server: locks, mounts, feeds, flushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from waltz.server.lock_table import LockTable
from waltz.server.partition import ServerPartition
from waltz.server.transaction_data import DataRequests
from waltz.sim.bugs.bug import Bug, Scene, forgotten
from waltz.sim.patches import Patch
from waltz.types import TransactionId
from waltz.wire.client_protocol import FlushRequest, LockFailure


def _checking(
    **changes: Callable[[Any], Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The lock table is shown other requests than the ones there are."""

    def change(admit: Callable[..., Any]) -> Callable[..., Any]:
        def admitted(self: Any, requests: Sequence[Any]) -> Any:
            shown = [
                replace(request, **{name: of(request) for name, of in changes.items()})
                for request in requests
            ]
            return admit(self, shown)

        return admitted

    return change


def _forgetting_claims(admit: Callable[..., Any]) -> Callable[..., Any]:
    def admitted(self: Any, requests: Any) -> Any:
        admission = admit(self, requests)
        self._claims.fill(0)
        return admission

    return admitted


def _forgetting_claims_once_committed(commit: Callable[..., None]) -> Callable[..., None]:
    def committed(self: Any, *arguments: Any) -> None:
        commit(self, *arguments)
        self._claims.fill(0)

    return committed


def _deciding_only(_: Callable[..., None]) -> Callable[..., None]:
    def committed(self: Any, first_transaction_id: TransactionId, count: int) -> None:
        self._decide(count)

    return committed


def _elsewhere(request: Any) -> tuple[int, ...]:
    return tuple(lock_hash ^ 0x5555 for lock_hash in request.read_locks)


def _overtaking(reserve: Callable[..., None]) -> Callable[..., None]:
    def reserved(self: Any, request: Any, until: int) -> None:
        reserve(self, request, until)
        self._client_until.clear()

    return reserved


def _passing_at_once(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def change(pass_barriers: Callable[..., None]) -> Callable[..., None]:
        def passed(self: Any) -> None:
            if self.high_water_mark is not None:
                for barrier in [b for b in self._barriers_behind if isinstance(b.request, kind)]:
                    self._barriers_behind.remove(barrier)
                    self._barriers.appendleft((self._locks.decided, barrier))
            pass_barriers(self)

        return passed

    return change


def _naming_the_next(failure: Callable[..., Any]) -> Callable[..., Any]:
    return lambda request_id, transaction_id: LockFailure(
        request_id, TransactionId(transaction_id + 1)
    )


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
        caught=Scene(0, "lock_contention", "none"),
    ),
    Bug(
        name="a commit forgets what else is in flight",
        breaks="I7 locks",
        patches=(Patch(LockTable, "commit", _forgetting_claims_once_committed),),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
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
        patches=(
            Patch(
                LockTable, "admit", _checking(write_locks=lambda request: request.write_locks[:1])
            ),
        ),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="locks that are read are looked for where nobody writes them",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(read_locks=_elsewhere)),),
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
        caught=Scene(1001, "bank", "contested_partition"),
    ),
    Bug(
        name="append locks are not recorded",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(append_locks=lambda _: ())),),
        workloads=("bank",),
        plans=("none",),
        caught=Scene(0, "bank", "none"),
    ),
    Bug(
        name="read locks are not checked",
        breaks="I7 locks",
        patches=(Patch(LockTable, "admit", _checking(read_locks=lambda _: ())),),
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
                _checking(
                    client_high_water_mark=lambda r: TransactionId(r.client_high_water_mark + 1)
                ),
            ),
        ),
        workloads=("lock_contention", "bank"),
        plans=("none",),
        caught=Scene(0, "lock_contention", "none"),
    ),
    Bug(
        name="a client's append overtakes an earlier one that waits",
        breaks="I5 verdicts",
        patches=(Patch(LockTable, "_reserve", _overtaking),),
        workloads=("append", "lock_contention"),
        plans=("power_cut",),
        caught=Scene(1023, "append", "power_cut"),
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
        name="a refusal names the transaction after the one that holds the lock",
        breaks="I8 lock progress",
        patches=(
            Patch(
                __import__("waltz.server.partition", fromlist=["x"]),
                "LockFailure",
                _naming_the_next,
            ),
        ),
        workloads=("lock_contention",),
        plans=("none",),
        caught=Scene(2, "lock_contention", "none"),
    ),
    Bug(
        name="data asked for over a full connection are never sent",
        breaks="I12 convergence",
        patches=(Patch(DataRequests, "resume", forgotten),),
        workloads=("slow_consumer",),
        plans=("none",),
        caught=Scene(1009, "slow_consumer", "none"),
    ),
)
