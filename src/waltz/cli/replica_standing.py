"""A partition's replicas as tools show them: the assigned ones, as their server knows them.

The coordinator's metadata says which replicas took part when the store session opened; tools never
show that as the present state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waltz.types import ReplicaId
from waltz.wire.report_protocol import NEVER, PartitionReport, ReplicaEntry, Standing

UNASKED = "unknown"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """`standing` is a name of `Standing`; `takes_appends` is None if unknown; the age is that of
    the replica's last answer to its server, None if there is none."""

    replica_id: str
    standing: str
    takes_appends: bool | None
    answer_age_seconds: float | None
    text: str

    @property
    def is_current(self) -> bool:
        """Return whether the replica has just reported that it holds every commit and takes
        appends."""
        return self.standing == Standing.CURRENT.name.lower()

    @property
    def is_fault(self) -> bool:
        """Return whether the replica is known to have a fault; a silent one counts, since it should
        have answered."""
        return self.standing not in (UNASKED, Standing.CURRENT.name.lower())


def view_replicas(
    replicas: Sequence[ReplicaId], report: PartitionReport | None
) -> tuple[ReplicaView, ...]:
    """Return the standing of each of `replicas`, to which the partition is assigned; `report` is
    that of the partition's server, None if there is none."""
    if report is None:
        text = "it is not known whether it takes part"
        return tuple(ReplicaView(each, UNASKED, None, None, text) for each in sorted(replicas))
    entries = {entry.replica_id: entry for entry in report.replicas}
    return tuple(_view(each, entries.get(each), report) for each in sorted(replicas))


def _view(
    replica_id: ReplicaId, entry: ReplicaEntry | None, report: PartitionReport
) -> ReplicaView:
    if entry is None:
        why = "" if report.reason is None else f": {report.reason}"
        text = f"takes no part in a store session{why}"
        return ReplicaView(replica_id, Standing.ABSENT.name.lower(), False, None, text)
    try:
        standing = Standing(entry.standing)
    except ValueError:
        standing = Standing.UNKNOWN  # a later release may know more
    age = entry.age_milliseconds
    return ReplicaView(
        replica_id,
        standing.name.lower(),
        {1: True, 0: False}.get(entry.takes_appends),
        None if age == NEVER else age / 1000,
        entry.text,
    )


def count_current(views: Sequence[ReplicaView]) -> int:
    return sum(view.is_current for view in views)


def counted(views: Sequence[ReplicaView], *, is_asked: bool) -> str:
    """Return how many replicas have reported to be whole: `2 of 3`, or `unknown`."""
    if not is_asked:
        return UNASKED
    unsure = sum(view.standing == UNASKED for view in views)
    more = f", {unsure} unknown" if unsure else ""
    return f"{count_current(views)} of {len(views)}{more}"
