"""The figures of a storage node, read from the JSON that its admin port gives.

A node may be of another release, or hostile: a figure that is missing or no number is unknown, and
nothing else of the text is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """The figures of one partition on a node; None: not told."""

    durable_id: int | None = None
    damaged_records: int | None = None
    drains: int | None = None
    drain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The figures of a node since it started; None: not told."""

    free_bytes: int | None = None
    total_bytes: int | None = None
    minimum_bytes: int | None = None
    scrubbed_bytes: int | None = None
    scrub_passes: int | None = None
    last_pass_seconds: float | None = None
    partitions: Mapping[PartitionId, ReplicaFigures] = field(default_factory=dict)

    @property
    def damaged_records(self) -> int | None:
        """Return the records on this node that await repair; None: not told."""
        told = [each.damaged_records for each in self.partitions.values()]
        known = [each for each in told if each is not None]
        return sum(known) if len(known) == len(told) else None

    def drains(self) -> tuple[int, float]:
        """Return the number of writes with their sync, and the seconds that they took together."""
        counts = [each.drains or 0 for each in self.partitions.values()]
        seconds = [each.drain_seconds or 0.0 for each in self.partitions.values()]
        return sum(counts), sum(seconds)


def mean_drain(before: NodeFigures | None, after: NodeFigures | None) -> float | None:
    """Return the mean duration of the writes between two answers; None: there were none, or the
    node has started anew."""
    if before is None or after is None:
        return None
    (count_before, seconds_before), (count, seconds) = before.drains(), after.drains()
    if count <= count_before or seconds < seconds_before:
        return None
    return (seconds - seconds_before) / (count - count_before)


def figures_in(metrics_json: str | None) -> NodeFigures | None:
    """Return the figures in a node's answer; None: it is not of the form of our nodes."""
    try:
        found: Any = json.loads(metrics_json or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("node"), dict):
        return None
    node, partitions = found["node"], found.get("partitions")
    return NodeFigures(
        _whole(node.get("disk_free_bytes")),
        _whole(node.get("disk_bytes")),
        _whole(node.get("disk_free_minimum_bytes")),
        _whole(node.get("scrubbed_bytes")),
        _whole(node.get("scrub_passes")),
        _number(node.get("scrub_last_pass_seconds")),
        {
            PartitionId(int(name)): _replica(entry)
            for name, entry in (partitions.items() if isinstance(partitions, dict) else ())
            if name.isascii() and name.isdigit() and len(name) <= len(str(PARTITIONS_MAX))
            if isinstance(entry, dict)
        },
    )


def _replica(entry: Mapping[str, Any]) -> ReplicaFigures:
    drains = entry.get("drain_seconds")
    drains = drains if isinstance(drains, dict) else {}
    return ReplicaFigures(
        _whole(entry.get("durable_transaction_id")),
        _whole(entry.get("damaged_records")),
        _whole(drains.get("count")),
        _number(drains.get("sum")),
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _whole(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else None
    found = _number(value)
    return None if found is None or abs(found) >= 2**63 else int(found)
