"""Tables and batches of them by value, with the plain truth of what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.table_store import Batch, BlockFacts, Column, Layout, Rows
from waltz.spark.pipelines.tables import PLACES, Function, Measure, TableDefinition
from waltz.types import PartitionId, TransactionId

CLUSTER = UUID(int=1)
FUNCTIONS: tuple[Function, ...] = ("count", "sum", "min", "max", "first", "last")
LAYOUT = Layout(
    TableDefinition(
        "t",
        (("a", "a"), ("b", "b")),
        tuple(Measure(f"the_{each}", each, "x") for each in FUNCTIONS),
    ),
    (
        Column("a", "TEXT"),
        Column("b", "INTEGER"),
        *(Column(f"the_{each}", "INTEGER") for each in FUNCTIONS),
        *(Column(each, "INTEGER") for each in PLACES),
    ),
)
LAYOUTS = (LAYOUT, replace(LAYOUT, definition=replace(LAYOUT.definition, name="positive")))
"""Two tables: of all events, and of those with a positive value."""

Event = tuple[str | None, int | None, int | None, int, int]
"""Keys a and b, value x, partition, transaction ID."""


def folded(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """The plain truth: each key's events in their order, all at once."""
    groups: dict[tuple[Any, Any], list[Event]] = {}
    for event in sorted(events, key=lambda each: (each[4], each[3])):
        groups.setdefault(event[:2], []).append(event)
    rows = []
    for key, group in groups.items():
        values = [each[2] for each in group if each[2] is not None]
        rows.append(
            (
                *key,
                len(group),
                sum(values) if values else None,
                min(values, default=None),
                max(values, default=None),
                group[0][2],
                group[-1][2],
                *group[0][3:],
                *group[-1][3:],
            )
        )
    return rows


def positive(events: Sequence[Event]) -> list[Event]:
    return [each for each in events if each[2] is not None and each[2] > 0]


def batch(
    events: Sequence[Event],
    ranges: Sequence[TransactionRange] = (),
    blocks: Sequence[BlockFacts] = (),
) -> Batch:
    """Return a batch for `LAYOUTS`."""
    one, other = LAYOUTS
    rows = [Rows(one, folded(events)), Rows(other, folded(positive(events)))]
    return Batch(ranges, blocks, rows)


def ranged(first: int, end: int, partition: int = 0) -> TransactionRange:
    return TransactionRange(PartitionId(partition), TransactionId(first), TransactionId(end))
