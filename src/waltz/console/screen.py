"""The picture of a cluster on a terminal: the same words as on the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from waltz.console.figure_text import (
    age_text,
    count_text,
    milliseconds_text,
    rate_text,
    size_text,
)
from waltz.console.picture import SEVERITY, ClusterPicture, Health, NodePicture, PartitionPicture

STYLES: Final = {
    Health.WELL: "green",
    Health.IMPAIRED: "yellow",
    Health.UNKNOWN: "magenta",
    Health.DOWN: "bold red",
}
SIGNS: Final = {
    Health.WELL: "●",
    Health.IMPAIRED: "◐",
    Health.UNKNOWN: "?",
    Health.DOWN: "■",
}

LINES_MIN: Final = 4
"""Rows of a table at least, however small the terminal is."""


def screen(picture: ClusterPicture, lines_max: int | None = None) -> RenderableType:
    """Return what fits into `lines_max` lines, the worst first; None: everything, by number."""
    parts: list[RenderableType] = [_title(picture)]
    parts += [_marked(each.health, each.text) for each in picture.notices]
    if picture.more_notices:
        parts.append(Text(f"  and {picture.more_notices} more", style="dim"))
    nodes: Sequence[NodePicture] = picture.nodes
    partitions: Sequence[PartitionPicture] = picture.partitions
    if lines_max is not None:
        left = max(2 * LINES_MIN, lines_max - len(parts) - 8)
        nodes = _worst_first(nodes)[: max(LINES_MIN, left // 3)]
        partitions = _worst_first(partitions)[: max(LINES_MIN, left - len(nodes))]
    if nodes:
        parts += [Text(), _nodes(nodes, len(picture.nodes))]
    if partitions:
        parts += [Text(), _partitions(partitions, len(picture.partitions))]
    return Group(*parts)


def _worst_first(rows: Sequence[NodePicture] | Sequence[PartitionPicture]) -> list:  # type: ignore[type-arg]
    return sorted(rows, key=lambda each: -SEVERITY[each.health])


def _title(picture: ClusterPicture) -> Text:
    title = Text()
    if picture.name:
        title.append(f"{picture.name}  ", style="bold")
    title.append(f"{SIGNS[picture.health]} ", style=STYLES[picture.health])
    title.append(picture.headline)
    if picture.rate is not None:
        title.append(f"  {rate_text(picture.rate)} commits per second", style="dim")
    return title


def _marked(health: Health, text: str) -> Text:
    return Text.assemble((f"{SIGNS[health]} ", STYLES[health]), text)


def _table(*headings: str, left: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if index < left else "right", no_wrap=index != left - 1
        )
    return table


def _nodes(nodes: Sequence[NodePicture], count: int) -> Table:
    heading = f"storage node ({len(nodes)} of {count})" if len(nodes) < count else "storage node"
    table = _table(
        heading, "state", "partitions", "free disk", "write and sync", "damaged", "told", left=2
    )
    for node in nodes:
        table.add_row(
            Text(node.name),
            _marked(node.health, node.text),
            str(node.partitions),
            size_text(node.free_bytes),
            milliseconds_text(node.drain_seconds),
            count_text(node.damaged_records),
            age_text(node.age_seconds),
        )
    return table


def _partitions(partitions: Sequence[PartitionPicture], count: int) -> Table:
    is_part = len(partitions) < count
    heading = f"partition ({len(partitions)} of {count})" if is_part else "partition"
    table = _table(
        heading, "state", "server", "last commit", "per second", "session", "replicas", "told",
        left=3,
    )  # fmt: skip
    for each in partitions:
        current = each.current_replicas
        table.add_row(
            str(each.partition_id),
            _marked(each.health, each.word),
            Text(each.server or "none"),
            count_text(each.mark),
            rate_text(each.rate),
            count_text(each.session_id),
            "unknown" if current is None else f"{current} of {len(each.replicas)}",
            age_text(each.age_seconds),
        )
    return table
