"""Seeded bugs of the lock table: while it grows, and where many requests are checked at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.server.appends import claims
from waltz.server.appends.claims import Claims
from waltz.server.appends.lock_table import LockTable
from waltz.server.appends.locked_appends import LockColumns
from waltz.types import NOTHING


def _marking_old_slots_only(make_room: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, lock_count: int) -> None:
        before = self._slot_count
        make_room(self, lock_count)
        self._marks[before:] = NOTHING

    return made


def _growing_empty(grow: Callable[..., None]) -> Callable[..., None]:
    def grown(self: Any, factor: int) -> None:
        before = len(self.table)
        grow(self, factor)
        self.table[before:] = 0

    return grown


def _staying_in_their_slots(_: Any) -> Callable[..., Any]:
    return lambda claimed, slot_count: claimed


def _seeing_no_claims(may_wait: Callable[..., Any]) -> Callable[..., Any]:
    def found(self: Any, appends: Any, columns: Any, refusals: Any) -> Any:
        return np.zeros_like(may_wait(self, appends, columns, refusals))

    return found


def _recorded_by_nobody_before(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, places, rows: np.zeros(len(places), np.bool_)


def _claiming_oldest(add: Callable[..., None]) -> Callable[..., None]:
    """A slot that is claimed twice in a batch keeps the first ticket."""

    def added(self: Any, claimed: Any) -> None:
        add(self, claimed)
        if len(claimed.tickets) and isinstance(claimed.tickets, np.ndarray):
            self.table[claimed.slots] = claimed.tickets[0]

    return added


def _writing_only(of: Any) -> Any:
    """What is only read is not checked."""

    def columns(cls: Any, appends: Any, slot_count: int) -> Any:
        found = of.__func__(cls, appends, slot_count)
        found.checked[~found.recorded] = False
        return found

    return classmethod(columns)


def _one_after_the_other(commit: Callable[..., None]) -> Callable[..., None]:
    """A batch's marks are those of its first transaction."""

    def committed(self: Any, first: Any, count: int) -> None:
        shift = first - self.decided - 1
        for claimed in self._decide(count):
            for ticket, triple in zip(claimed.tickets, claimed.slots, strict=True):
                for slot in triple:
                    self._marks[slot] = int(claimed.tickets[0]) + shift
                    assert ticket

    return committed


def _letting_followers_pass(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, columns, first, client_id: {}


LOCK_BUGS: Final = (
    Bug(
        name="the new slots of a lock table that grows have no marks",
        breaks="I7 locks",
        patches=(Patch(LockTable, "_make_room", _marking_old_slots_only),),
        workloads=("many_locks",),
        plans=("none", "server_crash"),
        caught=Scene(7, "many_locks", "server_crash"),
    ),
    Bug(
        name="the new slots of a lock table that grows are claimed by nobody",
        breaks="I7 locks",
        patches=(Patch(Claims, "grow", _growing_empty),),
        workloads=("many_locks",),
        plans=("none", "slow_disk"),
        caught=Scene(4, "many_locks", "none"),
    ),
    Bug(
        name="what was claimed before a lock table has grown is committed in its old slots",
        breaks="I7 locks",
        patches=(Patch(claims, "_moved", _staying_in_their_slots),),
        workloads=("many_locks",),
        plans=("none", "slow_disk"),
        caught=Scene(0, "many_locks", "none"),
    ),
    Bug(
        name="many requests at once do not see each other's claims",
        breaks="I7 locks",
        patches=(Patch(LockTable, "_may_wait", _seeing_no_claims),),
        workloads=("crowd",),
        plans=("none",),
        caught=Scene(2, "crowd", "none"),
    ),
    Bug(
        name="many requests at once see only what earlier batches claim",
        breaks="I7 locks",
        patches=(Patch(LockColumns, "is_recorded_before", _recorded_by_nobody_before),),
        workloads=("crowd",),
        plans=("none",),
        caught=Scene(2, "crowd", "none"),
    ),
    Bug(
        name="the claims of many requests at once all end with the first one",
        breaks="I7 locks",
        patches=(Patch(Claims, "add", _claiming_oldest),),
        workloads=("crowd",),
        plans=("none", "slow_disk"),
        caught=Scene(43, "crowd", "slow_disk"),
    ),
    Bug(
        name="of many requests at once only written locks are checked",
        breaks="I7 locks",
        patches=(Patch(LockColumns, "of", _writing_only),),
        workloads=("crowd",),
        plans=("none",),
        caught=Scene(5, "crowd", "none"),
    ),
    Bug(
        name="a batch's locks are marked with its first transaction",
        breaks="I7 locks",
        patches=(Patch(LockTable, "commit", _one_after_the_other),),
        workloads=("crowd", "append"),
        plans=("none",),
        caught=Scene(4, "crowd", "none"),
    ),
    Bug(
        name="of many requests at once those behind one that waits do not queue up",
        breaks="I5 verdicts",
        patches=(Patch(LockTable, "_queue_up", _letting_followers_pass),),
        workloads=("crowd",),
        plans=("none", "slow_disk"),
        caught=Scene(2, "crowd", "none"),
    ),
)
