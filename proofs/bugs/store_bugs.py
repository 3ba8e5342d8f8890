"""Seeded bugs of the store: who votes, who counts, and what becomes of what was left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.model.mutations import MUTATIONS
from proofs.patches import Patch
from waltz.record import NewRecords
from waltz.store import quorum, recovery, store_session
from waltz.store.events import Committed
from waltz.store.fences import Fences
from waltz.store.recovery import Recovery
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import RequestAnswered
from waltz.store.session_keeper import SessionKeeper
from waltz.store.store_session import StoreSession


def _as_in_the_model(name: str) -> tuple[Patch, ...]:
    (case,) = (case for case in MUTATIONS if case.name == name)
    return case.patches


def _off_by_one(_: Callable[[int], int]) -> Callable[[int], int]:
    return lambda replica_count: replica_count // 2


def _acknowledging_all_sent(_: Callable[..., None]) -> Callable[..., None]:
    def appended(self: Any, batch: Any) -> None:
        self._in_flight_count -= 1
        self.acknowledged_through = self.lacks - 1

    return appended


def _counting_what_is_sent(append: Callable[..., Any]) -> Callable[..., Any]:
    def appended(self: Any, batch: Any) -> Any:
        request = append(self, batch)
        if request is not None:
            self.acknowledged_through = self.lacks - 1
        return request

    return appended


def _believing_numbers(take: Callable[..., Any]) -> Callable[..., Any]:
    """A replica that has begun a session of this number already is taken for one of this session:
    the coordinator gives no number twice."""

    def taken(self: Any, event: Any) -> Any:
        return None if isinstance(event, RequestAnswered) else take(self, event)

    return taken


def _writing_again(close: Callable[..., None]) -> Callable[..., None]:
    """What was sent and not acknowledged is put back into the queue."""

    def closed(self: Any, reason: str, now: float, **more: Any) -> None:
        close(self, reason, now, **more)
        for batch in reversed(self._unsettled):
            written = batch.request_ids(), batch.headers(), batch.all_data()
            self._queue.appendleft(NewRecords(*written, batch.data_checksums()))
        self._unsettled.clear()

    return closed


def _resuming_unwritten(settle: Callable[..., None]) -> Callable[..., None]:
    def settled(self: Any, session_id: Any, mark: Any) -> None:
        while self._unsettled:
            self._effects.append(Committed(self._unsettled.popleft()))
        settle(self, session_id, mark)

    return settled


def _recovered_once_marked(advance: Callable[..., None]) -> Callable[..., None]:
    def advanced(self: Any, replica: Any) -> None:
        mark = self.high_water_mark
        is_free = not replica.busy and not replica.recovered and replica.holding is not None
        if self.admitted and mark is not None and is_free:
            replica.holding = max(replica.holding, mark)
        advance(self, replica)

    return advanced


def _of_any_attempt(_: Callable[..., Any]) -> Callable[..., Any]:
    def current(self: Any, link: Any) -> Any:
        replica = self._replicas.get(link.replica_id)
        if replica is None or replica.phase is ReplicaPhase.RELEASED:
            return None
        return replica if replica.link == link or not replica.is_excluded else None

    return current


STORE_BUGS: Final = (
    Bug(
        name="one replica of three is enough to commit",
        breaks="I1 durability",
        patches=_as_in_the_model("one replica of three is enough to commit"),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(3, "bank", "swizzle"),
    ),
    Bug(
        name="replicas that do not answer are taken for empty",
        breaks="I1 durability",
        patches=_as_in_the_model("replicas that do not answer are taken for empty"),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(7, "bank", "swizzle"),
    ),
    Bug(
        name="replicas that lost their disk are taken for empty",
        breaks="I1 durability",
        patches=_as_in_the_model("replicas that lost their disk are taken for empty"),
        workloads=("append", "bank"),
        plans=("lost_disk",),
        caught=Scene(298, "append", "lost_disk"),
    ),
    Bug(
        name="a disk replaced by an empty one votes",
        breaks="I1 durability",
        patches=_as_in_the_model("a disk replaced by an empty one votes"),
        workloads=("append", "bank"),
        plans=("lost_disk",),
        caught=Scene(0, "append", "lost_disk"),
    ),
    Bug(
        name="a lost replica comes back into the same session",
        breaks="I1 durability",
        patches=_as_in_the_model("a lost replica comes back into the same session"),
        workloads=("append", "bank"),
        plans=("flapping",),
        caught=Scene(4, "append", "flapping"),
    ),
    Bug(
        name="undecided appends are told to have failed when their session ends",
        breaks="I5 verdicts",
        patches=_as_in_the_model(
            "undecided appends are told to have failed when their session ends"
        ),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(3, "bank", "swizzle"),
    ),
    Bug(
        name="a server opens sessions after a later owner has",
        breaks="I3 one line of commits",
        patches=_as_in_the_model("a server opens sessions after a later owner has"),
        workloads=("append", "bank"),
        plans=("stale_server",),
        caught=Scene(8, "bank", "stale_server"),
    ),
    Bug(
        name="a majority is one replica too few",
        breaks="I1 durability",
        patches=tuple(Patch(m, "majority", _off_by_one) for m in (quorum, recovery, store_session)),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(3, "bank", "swizzle"),
    ),
    Bug(
        name="an answer acknowledges all that was sent",
        breaks="I1 durability",
        patches=(Patch(ReplicaSession, "appended", _acknowledging_all_sent),),
        workloads=("append", "bank"),
        plans=("slow_disk", "power_cut"),
        caught=Scene(50, "append", "power_cut"),
    ),
    Bug(
        name="an append counts once it is sent",
        breaks="I1 durability",
        patches=(Patch(ReplicaSession, "append", _counting_what_is_sent),),
        workloads=("append", "bank"),
        plans=("power_cut",),
        caught=Scene(3, "append", "power_cut"),
    ),
    Bug(
        name="what a session left open is written again",
        breaks="I6 at most once",
        patches=(Patch(SessionKeeper, "_close_session", _writing_again),),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(3, "bank", "swizzle"),
    ),
    Bug(
        name="a replica that joins late counts before it has caught up",
        breaks="I1 durability",
        patches=(Patch(Recovery, "_advance", _recovered_once_marked),),
        workloads=("append", "bank"),
        plans=("swizzle",),
        caught=Scene(11, "bank", "swizzle"),
    ),
    Bug(
        name="answers of an attempt given up count",
        breaks="I1 durability",
        patches=(Patch(StoreSession, "_current", _of_any_attempt),),
        workloads=("append", "bank"),
        plans=("flapping",),
        caught=Scene(33, "bank", "flapping"),
    ),
    Bug(
        name="what a session left open is taken for written",
        breaks="I1 durability",
        patches=(Patch(SessionKeeper, "_settle", _resuming_unwritten),),
        workloads=("append", "bank"),
        plans=("contested_partition",),
        caught=Scene(2027, "bank", "contested_partition"),
    ),
    Bug(
        name="a session takes appends before its metadata are written",
        breaks="I1 durability",
        patches=_as_in_the_model("a session takes appends before its metadata are written"),
        workloads=("append", "bank"),
        plans=("contested_partition",),
        caught=Scene(2, "append", "contested_partition"),
    ),
    Bug(
        name="a majority of the assigned replicas decides, not of the last session's",
        breaks="I1 durability",
        patches=_as_in_the_model(
            "a majority of the assigned replicas decides, not of the last session's"
        ),
        workloads=("append", "bank"),
        plans=("changing_replicas",),
        caught=Scene(17, "bank", "changing_replicas"),
    ),
    Bug(
        name="a new replica votes",
        breaks="I1 durability",
        patches=_as_in_the_model("a new replica votes"),
        workloads=("append", "bank"),
        plans=("changing_replicas",),
        caught=Scene(0, "append", "changing_replicas"),
    ),
    Bug(
        name="a closed replica is not cut",
        breaks="I2 agreement",
        patches=_as_in_the_model("a closed replica is not cut"),
        workloads=("append", "bank"),
        plans=("outlived_tails",),
        caught=Scene(12, "append", "outlived_tails"),
    ),
    Bug(
        name="a closed replica votes",
        breaks="I2 agreement",
        patches=_as_in_the_model("a closed replica votes"),
        workloads=("append", "bank"),
        plans=("outlived_tails",),
        caught=Scene(12, "append", "outlived_tails"),
    ),
    Bug(
        name="a server asks on for a session when storage nodes have promised a later one",
        breaks="I12 convergence",
        patches=(Patch(Fences, "outrun", forgotten),),
        workloads=("append", "bank"),
        plans=("set_back",),
        caught=Scene(3, "bank", "set_back"),
    ),
    Bug(
        name="a session opens under a number that the coordinator has given before",
        breaks="I2 agreement",
        patches=(Patch(Fences, "take", _believing_numbers),),
        workloads=("append", "bank"),
        plans=("set_back",),
        caught=Scene(81, "append", "set_back"),
    ),
)
