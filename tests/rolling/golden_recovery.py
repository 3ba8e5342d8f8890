"""The recovery of a partition by `golden_server`: the replicas' vote on the high-water mark.

Each replica's thread walks through it by itself and shares what it learns with the others. A
replica whose tail is not to be trusted is cut and does not vote; one that is behind is caught up
from another one, its usher.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.rolling.golden_tree import UNRESOLVED

if TYPE_CHECKING:
    from tests.rolling.golden_store import Replica, StoreSession

States = Mapping[str, tuple[int, int]]
"""Session and closing high-water mark of each replica, as the partition's metadata has them."""

COPIED_MAX: Final = 20
"""Records that are copied at a time."""

LOOK_SECONDS: Final = 0.1
"""An usher that had nothing to copy is asked again after this time."""


class AbortedError(Exception):
    """The recovery has failed, or its session was closed."""


def cut_of(states: States, place: str, session: int, low_water_mark: int) -> tuple[str, int | None]:
    """Return the case of a replica, and the last transaction ID that it keeps; None: all, and it
    votes unless it is behind its own low-water mark.

    `session`, `low_water_mark`: as the storage node has them.
    """
    stored, closing = states.get(place, (-1, UNRESOLVED))
    if session < stored:
        return "A, inconsistent", low_water_mark
    if states and place not in states:
        return "B, new", low_water_mark
    if closing != UNRESOLVED:
        return "C, closed", closing
    return "E, votes", None


class Judged(NamedTuple):
    usher: str | None
    resolved: int | None


def judge(marks: Mapping[str, int], last: States, own: int, least_vote: float) -> Judged:
    """Return the replica from which one at `own` is caught up, and the high-water mark that the
    replicas' marks prove.

    `last`: the replicas of the last session; `marks` may have others, which do not count.
    """
    known = {place: mark for place, mark in marks.items() if place in last}
    quorum = len(last) // 2 + 1
    absent = len(last) - len(known)
    above = {place: mark for place, mark in known.items() if mark > own}
    usher = min(above, key=lambda place: above[place], default=None)
    if least_vote > own:
        return Judged(usher, None)
    for mark in sorted({mark for mark in known.values() if mark >= own}, reverse=True):
        supporters = sum(each >= mark for each in known.values())
        if supporters >= quorum:
            return Judged(usher, mark)
        if supporters + absent >= quorum:
            break
    return Judged(usher, None)


def states_after(
    states: States, assigned: Sequence[str], clean: set[str], session: int, mark: int
) -> dict[str, tuple[int, int]]:
    """Return the states once a majority has recovered to `mark` in `session`."""
    found = {}
    for place in assigned:
        stored, closing = states.get(place, (-1, mark))
        if place in clean:
            found[place] = (session, UNRESOLVED)
        elif stored < session and closing == UNRESOLVED:
            found[place] = (stored, mark)
        else:
            found[place] = (stored, closing)
    return found


class Recovery:
    """The recovery of one session: what its replicas tell each other, those too that come once the
    session is open. The session's lock guards all of it."""

    def __init__(self, session: StoreSession, states: States) -> None:
        self._session = session
        self._changed = session.changed
        self.states = states
        """The replicas' states in the partition's metadata of now."""
        self._last = states
        self._least_vote = float("inf")
        self._marks: dict[str, int] = {}
        self.resolved: int | None = None if states else -1
        self._clean: set[str] = set()
        self._recovered: set[str] = set()
        self._writing = threading.Lock()
        self.is_aborted = False

    def abort(self) -> None:
        """Have all replicas give up, with the session's lock held."""
        self.is_aborted = True
        self._changed.notify_all()

    def recover(self, replica: Replica) -> int:
        """Return the transaction ID after the last one, once the replica and a majority have
        recovered. Raises AbortedError, RefusedError, OSError."""
        own = self._begin(replica)
        is_marked = False
        while True:
            with self._changed:
                self._check()
                resolved = self.resolved
            if resolved is not None:
                if not is_marked:
                    if own >= resolved:
                        own = replica.truncate(resolved)
                    replica.call("SetLWM", struct.pack(">q?", resolved, False))
                    is_marked = True
                if own >= resolved:
                    break
            own = self._step(replica, own)
        if own > resolved:
            own = replica.truncate(resolved)
        assert own == resolved
        self._report(replica.place, resolved)
        return resolved + 1

    def _begin(self, replica: Replica) -> int:
        """Return the replica's last transaction ID, now that it is cut where it must be."""
        session, low_water_mark = replica.last_session, replica.low_water_mark
        with self._changed:
            states = self.states
        case, last = cut_of(states, replica.place, session, low_water_mark)
        if last is not None:
            own, votes = replica.truncate(last), False
        else:
            (own,) = struct.unpack(">q", replica.call("MaxReq", b"\0"))
            votes = own >= low_water_mark
            case = case if votes else "D, behind"
        replica.say(f"case {case}: last session {session}, mark {low_water_mark}, at {own}")
        with self._changed:
            if votes:
                self._least_vote = min(self._least_vote, own)
            else:
                self._clean.add(replica.place)
        return own

    def _step(self, replica: Replica, own: int) -> int:
        """Judge, and then copy from the usher or wait for another replica; return the last
        transaction ID."""
        with self._changed:
            if self._marks.get(replica.place) != own:
                self._marks[replica.place] = own
                self._changed.notify_all()
            usher, resolved = judge(self._marks, self._last, own, self._least_vote)
            if self.resolved is None and resolved is not None:
                self.resolved = resolved
                self._changed.notify_all()
                replica.say(f"resolved: {resolved}, by {self._marks}")
                return own
            if usher is None:
                self._changed.wait(LOOK_SECONDS if self.resolved is not None else None)
                return own
            target = self._marks[usher] if self.resolved is None else self.resolved
            source = self._session.replica(usher)
        return self._copy(replica, source, own, target)

    def _copy(self, replica: Replica, source: Replica, own: int, target: int) -> int:
        while own < target:
            records = source.records(own + 1, min(COPIED_MAX, target - own))
            if not records:
                with self._changed:
                    self._changed.wait(LOOK_SECONDS)
                break
            replica.append(records)
            own += len(records)
        return own

    def _report(self, place: str, resolved: int) -> None:
        """Write the states once a majority has recovered, and again for each that comes later; the
        session is open then. The original opens it an instant before."""
        session = self._session
        with self._changed:
            self._clean.add(place)
            self._recovered.add(place)
            self._changed.notify_all()
            while len(self._recovered) < session.quorum:
                self._check()
                self._changed.wait()
            self._check()
        with self._writing:
            with self._changed:
                clean = set(self._clean)

            def change(states: States) -> States:
                return states_after(states, session.places, clean, session.number, resolved)

            written = session.tree.write_states(session.partition, session.number, change)
            with self._changed:
                self.states = written.states
                session.note_open(resolved)

    def _check(self) -> None:
        if self.is_aborted or self._session.is_closed:
            raise AbortedError("the recovery has ended")
