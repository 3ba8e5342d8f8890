"""The hold of one partition: for a moment the partition hears of no further commits.

Owns which events of the store wait for the end of a hold, when a hold ends, what breaks it, and how
often there may be one. Knows no messages. Everything that a partition tells anybody follows from
the commits that it has heard of, so a partition that hears of none announces none, whatever the
message (docs/decisions/0043-cuts.md). A hold only delays events that a busy store could have
delayed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, TypeAlias

from waltz.limits import HOLD_PAUSE_SECONDS, HOLD_SECONDS_MAX
from waltz.server.server_partition_events import (
    ConnectionLost,
    HoldEnded,
    HoldReleased,
    HoldRequested,
    PartitionEvent,
    PartitionRevoked,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened

NO_SUCH_HOLD: Final = "there is no such hold: it was released, or its partition was opened anew"

TIME_IS_UP: Final = "it has lasted as long as was asked for"

Outcome: TypeAlias = Committed | AppendsFailed
"""An event of the store that a hold keeps back."""


class Hold:
    """At most one hold at a time, of one connection."""

    def __init__(self) -> None:
        self.until: float | None = None
        """The time at which the hold that is in force ends; None: there is none."""
        self.kept_back: list[Outcome] = []
        """The events that wait for the end of the hold, in order."""
        self._asked: HoldRequested | None = None
        """The request of the last hold, unless that was released."""
        self._broken_by: str | None = None
        """The reason why the last hold has ended before its release; None: it is in force, or there
        was none."""
        self._free_at = -inf
        """The time from which there may be another one."""

    def begin(self, asked: HoldRequested, now: float) -> str | None:
        """Begin a hold. Return None, or the reason why there is none.

        `asked.seconds` is at most HOLD_SECONDS_MAX, and a hold begins at least HOLD_PAUSE_SECONDS
        after the one before it, so that holds take at most a twentieth of the time.
        """
        assert 0.0 < asked.seconds <= HOLD_SECONDS_MAX
        if self.until is not None:
            return "another hold is in force"
        if now < self._free_at:
            return (
                f"the last hold began less than {HOLD_PAUSE_SECONDS:g} s ago; the next one may"
                f" begin in {self._free_at - now:.2f} s"
            )
        self.until = now + asked.seconds
        self._free_at = now + HOLD_PAUSE_SECONDS
        self._asked = asked
        self._broken_by = None
        return None

    def let_through(self, event: PartitionEvent) -> Sequence[PartitionEvent]:
        """Return the events that the partition takes now that `event` has come.

        A hold ends with its connection, and when the store session or the owner changes: marks on
        disks and in the metadata, which others may read, move between sessions.
        """
        if self.until is None:
            return (event,)
        match event:
            case Committed() | AppendsFailed():
                self.kept_back.append(event)
                return ()
            case StoreOpened() | StoreClosed():
                return *self.end("the store session has changed"), event
            case PartitionRevoked():
                return *self.end("the partition has moved"), event
            case ConnectionLost(connection_id) if self._is_of(connection_id):
                return *self.end("its connection has ended"), event
            case _:
                return (event,)

    def end(self, reason: str) -> list[Outcome]:
        """End the hold that is in force before its release; return what was kept back, in order."""
        assert self.until is not None
        self.until = None
        self._broken_by = reason
        kept_back, self.kept_back = self.kept_back, []
        return kept_back

    def release(self, asked: HoldReleased) -> tuple[HoldEnded, list[Outcome]]:
        """End the hold. Return the answer, which says whether the hold was in force from its
        beginning until now; and what was kept back, in order."""
        if not self._is_of(asked.connection_id) or self._hold_id != asked.hold_id:
            return HoldEnded(asked.hold_id, NO_SUCH_HOLD), []
        broken_by = self._broken_by
        kept_back = [] if self.until is None else self.end(NO_SUCH_HOLD)
        self._asked = None
        return HoldEnded(asked.hold_id, broken_by), kept_back

    def check_invariants(self) -> None:
        assert self.until is not None or not self.kept_back
        assert self.until is None or (self._asked is not None and self._broken_by is None)
        assert self.until is None or self.until <= self._free_at

    @property
    def _hold_id(self) -> int | None:
        return None if self._asked is None else self._asked.hold_id

    def _is_of(self, connection_id: int) -> bool:
        return self._asked is not None and self._asked.connection_id == connection_id
