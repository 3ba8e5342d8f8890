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
    mark_text,
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

WIDE: Final = 110
"""Columns of a terminal from which on all figures are shown."""

STATE_WIDTH_MIN: Final = 24
"""Columns of the words on a state: narrower, they cannot be read."""

LINES_MIN: Final = 4
"""Rows of a table at least, however small the terminal is."""


def screen(
    picture: ClusterPicture, lines_max: int | None = None, *, width: int = WIDE
) -> RenderableType:
    """Return what fits into `lines_max` lines, the worst first; None: everything, by number. A
    terminal narrower than `WIDE` has fewer columns."""
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
        parts += [Text(), _nodes(nodes, len(picture.nodes), is_wide=width >= WIDE)]
    if partitions:
        parts += [Text(), _partitions(partitions, len(picture.partitions), is_wide=width >= WIDE)]
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


def _table(columns: Sequence[tuple[str, bool]], *, is_wide: bool) -> Table:
    """Return a table; each column has its heading, and whether a narrow terminal has it, too."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, (heading, is_always) in enumerate(columns):
        if not (is_wide or is_always):
            continue
        is_state = index == 1
        table.add_column(
            heading,
            justify="left" if index < 2 else "right",
            no_wrap=not is_state,
            min_width=STATE_WIDTH_MIN if is_state else None,
        )
    return table


def _heading(noun: str, shown: int, count: int) -> str:
    return f"{noun} ({shown} of {count})" if shown < count else noun


def _nodes(nodes: Sequence[NodePicture], count: int, *, is_wide: bool) -> Table:
    columns = (
        (_heading("storage node", len(nodes), count), True),
        ("state", True),
        ("partitions", False),
        ("free disk", True),
        ("write and sync", False),
        ("damaged", False),
        ("told", True),
    )
    table = _table(columns, is_wide=is_wide)
    for node in nodes:
        cells = (
            Text(node.name),
            _marked(node.health, node.text),
            str(node.partitions),
            size_text(node.free_bytes),
            milliseconds_text(node.drain_seconds),
            count_text(node.damaged_records),
            age_text(node.age_seconds),
        )
        _add(table, columns, cells, is_wide=is_wide)
    return table


def _partitions(partitions: Sequence[PartitionPicture], count: int, *, is_wide: bool) -> Table:
    columns = (
        (_heading("partition", len(partitions), count), True),
        ("state", True),
        ("server", False),
        ("last commit", True),
        ("per second", True),
        ("session", False),
        ("replicas", True),
        ("told", True),
    )
    table = _table(columns, is_wide=is_wide)
    for each in partitions:
        current = each.current_replicas
        cells = (
            str(each.partition_id),
            _marked(each.health, each.word),
            Text(each.server or "none"),
            mark_text(each.mark),
            rate_text(each.rate),
            count_text(each.session_id),
            "unknown" if current is None else f"{current} of {len(each.replicas)}",
            age_text(each.age_seconds),
        )
        _add(table, columns, cells, is_wide=is_wide)
    return table


def _add(
    table: Table,
    columns: Sequence[tuple[str, bool]],
    cells: Sequence[str | Text],
    *,
    is_wide: bool,
) -> None:
    pairs = zip(columns, cells, strict=True)
    table.add_row(*(cell for (_, is_always), cell in pairs if is_wide or is_always))
