"""The parts of the package, and which of them may import which, drawn from the law itself.

Importers stand above what they import, so that a row's dots lie to the right of its box, and a
column's dots above. The law is `LAYERS` in `tests/test_tidy.py`; folders are those of `src/waltz`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from docs.pictures.drawing import MARGIN, SMALL, Drawing, width, wrapped
from tests.test_tidy import LAYERS, PACKAGE, WORDS

ROW: Final = 46
COLUMN: Final = 46
BOX: Final = 34
LEFT: Final = 250
"""Where the first box ends."""

INSET: Final = 16
"""From the right end of a box to the arrow that leads to it."""

FACE: Final = "waltz/__init__"
"""How the part without a name is called in the picture."""


def order(layers: Mapping[str, set[str]]) -> list[str]:
    """Return the parts, each above all that it imports; of two that may be, the later one first."""
    left = [part for part in layers if part not in WORDS]
    found: list[str] = []
    while left:
        free = [part for part in left if not any(imports(layers, other, part) for other in left)]
        assert free, f"these import each other: {left}"
        found.append(free[-1])
        left.remove(free[-1])
    return found


def imports(layers: Mapping[str, set[str]], part: str, other: str) -> bool:
    return part != other and (other in layers[part] or bool(modules(layers, part, other)))


def modules(layers: Mapping[str, set[str]], part: str, other: str) -> list[str]:
    """Return the modules of `other` that `part` may import where it may not import all."""
    if other in layers[part]:
        return []
    return sorted(each for each in layers[part] if other and each.startswith(f"{other}."))


def folders(part: str, package: Path = PACKAGE) -> list[str]:
    return sorted(each.parent.name for each in (package / part).glob("*/__init__.py") if part)


def draw() -> str:
    """Return the picture of the law as it stands."""
    parts = order(LAYERS)
    drawing = Drawing("The parts of waltz and what each may import")
    edge = [LEFT + index * COLUMN for index in range(len(parts))]
    top = [MARGIN + index * ROW for index in range(len(parts))]
    words_at, floor = edge[-1] + COLUMN, top[-1] + ROW
    notes: list[str] = []
    dots: list[tuple[float, float, bool]] = []
    for row, part in enumerate(parts):
        y = top[row] + BOX / 2
        last: float = words_at
        for column in range(row + 1, len(parts)):
            if not imports(LAYERS, part, parts[column]):
                continue
            some = modules(LAYERS, part, parts[column])
            notes += [f"{part} -> {each}" for each in some]
            dots.append((edge[column] - INSET, y, not some))
        if some_words := LAYERS[part] & WORDS:
            dots.append((words_at, y, some_words == WORDS))
        else:
            last = max(x for x, at, _ in dots if at == y)
        drawing.line([(edge[row], y), (last, y)])
    ends_at: dict[float, int] = {words_at: floor}
    ends_at |= {right - INSET: y for right, y in zip(edge, top, strict=True)}
    for x in sorted({x for x, _, _ in dots}):
        ends = ends_at[x]
        drawing.line([(x, min(y for at, y, _ in dots if at == x)), (x, ends)])
        drawing.head_down(x, ends, "line")
    for x, y, whole in dots:
        drawing.dot(x, y, "edge" if whole else "paper", "edge")
    for row, part in enumerate(parts):
        _box(drawing, part, edge[row], top[row])
    _floor(drawing, floor, words_at, notes)
    return drawing.svg()


def _box(drawing: Drawing, part: str, right: float, y: float) -> None:
    inside = ", ".join(folders(part))
    name = part or FACE
    wide = 24 + max(width(name) * 1.1, width(inside, SMALL))
    drawing.box(right - wide, y, wide, BOX, "box", "edge")
    middle = right - wide / 2
    baseline = y + (BOX / 2 - 3 if inside else BOX / 2 + 4.5)
    drawing.words(middle, baseline, name, anchor="middle", bold=True)
    if inside:
        drawing.words(middle, y + BOX - 5, inside, "faint", anchor="middle", size=SMALL)


def _floor(drawing: Drawing, y: float, right: float, notes: list[str]) -> None:
    """Draw the words on which everything stands, and how the picture is read."""
    room = right - MARGIN + 24
    lines = wrapped(", ".join(part for part in LAYERS if part in WORDS), room - 40)
    high = 30 + 17 * len(lines)
    drawing.box(MARGIN, y, room, high, "box", "edge")
    drawing.words(MARGIN + room / 2, y + 18, "words", anchor="middle", bold=True)
    for number, line in enumerate(lines):
        drawing.words(MARGIN + room / 2, y + 36 + 17 * number, line, anchor="middle")
    y += high + 26
    legend = (
        (True, "the part to the left may import what the line leads to"),
        (False, "some modules of it only:"),
    )
    for number, (whole, says) in enumerate(legend):
        drawing.dot(MARGIN + 6, y - 4 + 20 * number, "edge" if whole else "paper", "edge")
        drawing.words(MARGIN + 20, y + 20 * number, says)
    y += 40
    for number, line in enumerate(wrapped("; ".join(notes), room - 20, SMALL)):
        drawing.words(MARGIN + 20, y + 17 * number, line, "faint", size=SMALL)
