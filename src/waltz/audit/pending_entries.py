"""Entries that wait to be written, and sums of requests that are not worth a line each.

Owns the bounds, and what is lost at them. Knows no file: its owner writes what `to_write` returns
and says what came of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from waltz.audit.audit_entry import AuditDecision, AuditEntry

ENTRIES_MAX: Final = 10_000
"""Entries that wait; more are lost, and counted."""

RESERVED_ENTRIES: Final = 1_000
"""Room among these that denials do not take: peers that are denied again and again do not keep
operators from anything."""

BATCH_ENTRIES_MAX: Final = 5_000
"""Entries that are written at once."""

SUMS_MAX: Final = 10_000
"""Sums that are kept apart within a minute; further requests count as those of `OTHERS`."""

SUM_SECONDS: Final = 60.0
"""The time that one sum covers."""

OTHERS: Final = "others"
"""The principal of requests beyond `SUMS_MAX`; no peer has this name."""


class Summed(NamedTuple):
    """The requests that share a sum."""

    principal: str
    verb: str
    partition: int | None
    policy: int | None
    decision: AuditDecision = AuditDecision.ALLOWED


class PendingEntries:
    """See the module. Times are on the clock of the process, `at` in milliseconds since 1970."""

    def __init__(
        self,
        *,
        entries_max: int = ENTRIES_MAX,
        reserved: int = RESERVED_ENTRIES,
        sums_max: int = SUMS_MAX,
    ) -> None:
        self.lost = 0
        """Entries for which there was no room, since the process has started."""
        self.written_count = 0
        self.is_failing = False
        """Whether the last attempt to write has failed."""
        self._entries_max = entries_max
        self._reserved = reserved
        self._sums_max = sums_max
        self._waiting: deque[AuditEntry] = deque()
        self._lost_untold = 0
        self._sums: dict[Summed, int] = {}
        self._sums_due = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether what happens now will be written, as far as is known."""
        return not self.is_failing and len(self._waiting) < self._entries_max

    def put(self, entry: AuditEntry) -> bool:
        """Return whether there is room for the entry; else it is lost."""
        is_denial = entry.decision in (AuditDecision.DENIED, AuditDecision.OBSERVED)
        if len(self._waiting) >= self._entries_max - is_denial * self._reserved:
            self.lost += 1
            self._lost_untold += 1
            return False
        self._waiting.append(entry)
        return True

    def add(self, what: Summed, count: int, now: float) -> None:
        """Count requests, or appends, in the sum of this minute."""
        if not self._sums:
            self._sums_due = now + SUM_SECONDS
        if what not in self._sums and len(self._sums) >= self._sums_max:
            what = Summed(OTHERS, what.verb, None, None, what.decision)
        self._sums[what] = self._sums.get(what, 0) + count

    def to_write(self, at: int, now: float, *, is_last: bool = False) -> list[AuditEntry]:
        """Return entries to be written now, in order; they stay here until `wrote`. `is_last`: sums
        do not wait for the end of their minute."""
        if self._sums and (is_last or now >= self._sums_due):
            self._end_sums(at)
        if self._lost_untold and len(self._waiting) < self._entries_max:
            lost, self._lost_untold = self._lost_untold, 0
            reason = "there was no room for entries before this one"
            decision = AuditDecision.LOST
            self._waiting.append(AuditEntry(at, decision, "audit", reason=reason, count=lost))
        return [*self._waiting][:BATCH_ENTRIES_MAX]

    def wrote(self, count: int) -> None:
        """The first `count` entries are on stable storage."""
        self.is_failing = False
        self.written_count += count
        for _ in range(count):
            self._waiting.popleft()

    def failed(self) -> None:
        """Nothing could be written."""
        self.is_failing = True

    def _end_sums(self, at: int) -> None:
        """Let sums be entries, as far as there is room; the others go on."""
        while self._sums and len(self._waiting) < self._entries_max:
            what = next(iter(self._sums))
            self._waiting.append(
                AuditEntry(
                    at,
                    what.decision,
                    what.verb,
                    what.principal,
                    partition=what.partition,
                    reason=f"sum of at most {SUM_SECONDS:g} seconds",
                    policy=what.policy,
                    count=self._sums.pop(what),
                )
            )
