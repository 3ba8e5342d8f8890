"""A server's partition in front of which further commits may wait: `hold.py`.

Owns the order of a hold and what the partition hears: the mark of an answer is that of everything
that came before, and what comes after is held. Decides nothing about holds, and nothing about the
partition. Without a hold it is the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.server.hold import TIME_IS_UP, Hold
from waltz.server.server_partition import ServerPartition
from waltz.server.server_partition_events import (
    HoldBegun,
    HoldEvent,
    HoldReleased,
    HoldRequested,
    PartitionEffect,
    PartitionEvent,
)

HOLD_EVENTS: Final = frozenset({HoldRequested, HoldReleased})


class HeldPartition(ServerPartition):
    """The machine of one partition on one server, with its hold."""

    _hold: Hold | None = None
    """Made with the first hold: most partitions never have one."""

    def step(
        self, events: Sequence[PartitionEvent | HoldEvent], now: float
    ) -> Sequence[PartitionEffect]:
        """Take `events` in order; those that a hold keeps back are taken at its end."""
        hold = self._hold
        if hold is None:
            if HOLD_EVENTS.isdisjoint(map(type, events)):
                return super().step(events, now)  # type: ignore[arg-type]
            hold = self._hold = Hold()
        effects: list[PartitionEffect] = []
        passed: list[PartitionEvent] = []
        if hold.until is not None and now >= hold.until:
            passed += hold.end(TIME_IS_UP)
        for event in events:
            if not isinstance(event, HoldRequested | HoldReleased):
                passed += hold.let_through(event)
                continue
            effects += super().step(passed, now)
            passed = []
            if self.closed:
                return effects
            if isinstance(event, HoldRequested):
                effects.append(self._begin(hold, event, now))
            else:
                answer, kept_back = hold.release(event)
                effects.append(answer)
                passed += kept_back
        effects += super().step(passed, now)
        until = hold.until
        if until is not None and not self.closed:
            self.deadline = until if self.deadline is None else min(self.deadline, until)
        return effects

    def check_invariants(self) -> None:
        super().check_invariants()
        if self._hold is not None:
            self._hold.check_invariants()

    def _begin(self, hold: Hold, asked: HoldRequested, now: float) -> HoldBegun:
        mark = self.high_water_mark
        if not self.is_open or mark is None:
            return HoldBegun(asked.hold_id, f"it takes no appends: {self._reason}")
        if self._release_at is not None:
            return HoldBegun(asked.hold_id, "its server stops")
        refusal = hold.begin(asked, now)
        if refusal is not None:
            return HoldBegun(asked.hold_id, refusal)
        return HoldBegun(asked.hold_id, None, self.session_id, mark)
