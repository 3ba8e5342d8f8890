"""Sentences on who waits for whom: why partitions take appends, take none, or are not known.

A cause is equal for partitions that share it, so that a hundred partitions that
wait for one storage node are one sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from waltz.cli.partition_list import listed_partitions
from waltz.cli.replica_standing import UNASKED, ReplicaView
from waltz.majority import majority

STANDINGS: Final = {
    "away": ("is away", "are away"),
    "silent": ("does not answer the server", "do not answer the server"),
    "absent": ("takes no part", "take no part"),
    "behind": ("is catching up", "are catching up"),
    "damaged": ("has damaged records", "have damaged records"),
    "refusing": ("refuses appends", "refuse appends"),
    "recovering": ("is being recovered", "are being recovered"),
    UNASKED: ("cannot be judged now", "cannot be judged now"),
}
"""The words for replicas by their standing, for one and for several."""


@dataclass(frozen=True, slots=True)
class Cause:
    """`singular` and `plural` are what partitions do, `because` is why, empty if all is
    well."""

    singular: str
    plural: str
    because: str = ""

    def sentence(self, numbers: Sequence[int]) -> str:
        """Return the whole sentence on these partitions, at least one."""
        is_one = len(numbers) == 1
        subject = f"Partition {numbers[0]}" if is_one else f"Partitions {_listed(numbers)}"
        because = f": {self.because}" if self.because else ""
        return _ended(f"{subject} {self.singular if is_one else self.plural}{because}")


def well() -> Cause:
    return Cause("takes appends on all its replicas", "take appends on all their replicas")


def unknown(because: str) -> Cause:
    return Cause("may or may not take appends", "may or may not take appends", because)


def no_server(*, runs_any: bool) -> Cause:
    """`runs_any`: whether any server of the cluster runs."""
    because = (
        "the coordinator names no running server for it"
        if runs_any
        else "no server of the cluster is running"
    )
    return Cause("takes no appends", "take no appends", because)


def takes_some(named: Sequence[tuple[str, ReplicaView]], away: Collection[str]) -> Cause:
    """Return the cause of a partition that takes appends, but not on all its replicas."""
    current = sum(view.is_current for _, view in named)
    taking = sum(view.takes_appends is True for _, view in named)
    count = len(named)
    parts = [_standings(named, away)]
    if count and taking == majority(count) and not _is_unsure(named):
        parts.append("if one more replica is lost, appends stop")
    return Cause(
        f"takes appends with {current} of {count} replicas",
        f"take appends with {current} of {count} replicas",
        "; ".join(each for each in parts if each),
    )


def takes_none(
    named: Sequence[tuple[str, ReplicaView]], reason: str, count: int, away: Collection[str]
) -> Cause:
    """Return the cause of a partition that takes no appends. `named` are its replicas, none if it
    has no store session; `reason` is its server's word; `count` is its number of replicas. A
    replica that is being recovered waits itself, and is not one that is missing."""
    coming = {name for name, view in named if view.standing == "recovering"}
    missing = majority(count) - len(coming)
    missing -= sum(view.takes_appends is True for name, view in named if name not in coming)
    if not named or missing <= 0:
        return Cause("takes no appends", "take no appends", reason)
    replicas = "one more replica is" if missing == 1 else f"{missing} more replicas are"
    needed = f"{replicas} needed for a majority"
    standings = _standings(named, away)
    because = f"{standings}; {needed}" if standings else f"{reason}; {needed}"
    return Cause("takes no appends", "take no appends", because)


def _is_unsure(named: Sequence[tuple[str, ReplicaView]]) -> bool:
    return any(view.takes_appends is None for _, view in named)


def _standings(named: Sequence[tuple[str, ReplicaView]], away: Collection[str]) -> str:
    """Return the replicas that are not whole, grouped by what is so of them."""
    groups: dict[str, list[str]] = {}
    for name, view in named:
        if view.is_current:
            continue
        is_away = view.standing in ("silent", "absent") and view.replica_id in away
        groups.setdefault("away" if is_away else view.standing, []).append(name)
    parts = []
    for standing, names in groups.items():
        one, several = STANDINGS.get(standing, STANDINGS[UNASKED])
        parts.append(f"{_joined(names)} {one if len(names) == 1 else several}")
    return ", ".join(parts)


def _joined(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed(numbers: Sequence[int]) -> str:
    text = listed_partitions(numbers).replace(",", ", ").replace("-", "\N{EN DASH}")
    if len(text) <= 60:
        return text
    return f"{text[:50].rpartition(',')[0]} and others, {len(numbers)} in all,"


def _ended(text: str) -> str:
    return text if text.endswith((".", "…")) else f"{text}."
