"""The figures of an audit log, for each process that writes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from waltz.figures import Metric, counter, gauge

S = TypeVar("S")

NO_AUDIT: Final = "access.audit.file is not set"


class AuditStanding(NamedTuple):
    """The number of entries written and lost since the process has started, of those that wait, and
    whether the last write has failed."""

    written: int
    lost: int
    waiting: int
    is_failing: bool


def audit_metrics(of: Callable[[S], AuditStanding | None]) -> tuple[Metric[S], ...]:
    """Return the metrics of a process; `of` returns how its audit log is, None without one."""

    def value(read: Callable[[AuditStanding], int]) -> Callable[[S], int | None]:
        return lambda state: None if (found := of(state)) is None else read(found)

    return (
        counter(
            "audit_entries",
            "Entries of the audit log that are on stable storage.",
            value(lambda found: found.written),
            absent=NO_AUDIT,
        ),
        counter(
            "audit_entries_lost",
            "Entries of the audit log for which there was no room while they waited.",
            value(lambda found: found.lost),
            absent=NO_AUDIT,
        ),
        gauge(
            "audit_entries_waiting",
            "Entries of the audit log that are not written yet.",
            value(lambda found: found.waiting),
            absent=NO_AUDIT,
        ),
        gauge(
            "audit_failing",
            "1 if the last write of the audit log has failed: requests of operators are refused.",
            value(lambda found: found.is_failing),
            absent=NO_AUDIT,
        ),
    )
