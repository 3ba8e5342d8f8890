"""Lines, boxes and words as SVG: the same bytes on every machine, legible on light and on dark.

A picture brings its own background, and its colours change with the reader's preference. Words are
measured with the widths of a wide font, so that they fit with a narrower one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

COLOURS: Final = {
    "paper": ("#ffffff", "#14181f"),
    "ink": ("#1d2530", "#e6e9ee"),
    "faint": ("#667085", "#98a2b3"),
    "line": ("#98a2b3", "#667085"),
    "box": ("#eaf1fb", "#1f2f45"),
    "edge": ("#3b6fb5", "#7fb0f0"),
    "good": ("#d8f0df", "#1d4a30"),
    "new": ("#cfe3ff", "#234a80"),
    "lost": ("#fbdcd8", "#5c2320"),
    "disk": ("#fdeecd", "#4a3810"),
    "amber": ("#a86a10", "#f0c36d"),
    "loud": ("#b42318", "#ff9b8f"),
    "firm": ("#156f3b", "#7ddba0"),
}
"""Name of a colour: on a light and on a dark background."""

SIZE: Final = 13
SMALL: Final = 11.5
WIDTHS: Final = (("iljtfI.,:;|!'()[] ", 0.4), ("mwMW%@", 0.98), ("ABCDEFGHKLNOPQRSTUVXYZ", 0.74))
"""Widths of characters, in parts of the font's size; all others: `WIDTH`."""

WIDTH: Final = 0.62
MARGIN: Final = 20


def width(words: str, size: float = SIZE) -> float:
    """Return the room that `words` take at most."""
    return size * sum(
        next((each for chars, each in WIDTHS if char in chars), WIDTH) for char in words
    )


def wrapped(words: str, room: float, size: float = SIZE) -> list[str]:
    """Return `words` in lines that are at most `room` wide."""
    lines: list[str] = []
    for word in words.split():
        if lines and width(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
        assert width(lines[-1], size) <= room, f"{lines[-1]!r} is wider than {room}"
    return lines


class Drawing:
    """A picture that grows; what is drawn later lies above."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.elements: list[str] = []
        self.right = 0.0
        self.bottom = 0.0

    def box(
        self, x: float, y: float, wide: float, high: float, fill: str, stroke: str = "none"
    ) -> None:
        self._reach(x + wide, y + high)
        classes = f"f-{fill} s-{stroke}"
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="4"'
            f' class="{classes}"/>'
        )

    def dashed_box(self, x: float, y: float, wide: float, high: float, stroke: str) -> None:
        self.box(x, y, wide, high, "none", f"{stroke} dashed")

    def line(self, points: Sequence[tuple[float, float]], stroke: str = "line") -> None:
        for x, y in points:
            self._reach(x, y)
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.elements.append(f'<polyline points="{path}" class="f-none s-{stroke}"/>')

    def head(self, x: float, y: float, direction: int, fill: str = "edge") -> None:
        """Draw the head of a horizontal arrow that ends at `x`; `direction` is 1 or -1."""
        back = x - 9 * direction
        points = f"{x:g},{y:g} {back:g},{y - 4.5:g} {back:g},{y + 4.5:g}"
        self.elements.append(f'<polygon points="{points}" class="f-{fill}"/>')

    def head_down(self, x: float, y: float, fill: str = "edge") -> None:
        """Draw the head of an arrow that comes from above and ends at `y`."""
        points = f"{x:g},{y:g} {x - 4:g},{y - 8:g} {x + 4:g},{y - 8:g}"
        self.elements.append(f'<polygon points="{points}" class="f-{fill}"/>')

    def dot(self, x: float, y: float, fill: str, stroke: str = "none") -> None:
        self.elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="4.5" class="f-{fill} s-{stroke}"/>')

    def words(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        *,
        anchor: str = "start",
        size: float = SIZE,
        bold: bool = False,
    ) -> None:
        """Write one line whose baseline is at `y`."""
        room = width(words, size) * (1.1 if bold else 1)
        left = {"start": x, "middle": x - room / 2, "end": x - room}[anchor]
        assert left >= 0, f"{words!r} begins at {left}, outside of the picture"
        self._reach(left + room, y + 4)
        weight = ' font-weight="bold"' if bold else ""
        self.elements.append(
            f'<text x="{x:g}" y="{y:g}" class="f-{colour}" font-size="{size:g}"'
            f' text-anchor="{anchor}"{weight}>{escape(words, quote=False)}</text>'
        )

    def _reach(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)

    def svg(self) -> str:
        wide, high = round(self.right + MARGIN), round(self.bottom + MARGIN)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
            f' width="{wide}" height="{high}" role="img"'
            ' font-family="Verdana, DejaVu Sans, sans-serif">'
        )
        title = f"<title>{escape(self.title, quote=False)}</title>"
        paper = f'<rect width="{wide}" height="{high}" rx="8" class="f-paper"/>'
        style = ("<style>", *self._rules(), "</style>")
        return "\n".join((head, title, *style, paper, *self.elements, "</svg>\n"))

    def _rules(self) -> Iterator[str]:
        """Yield the rules of the colours that the picture has."""
        used = {*re.findall(r"\b[fs]-(\w+)", " ".join(self.elements)), "paper"} - {"none"}
        yield ".f-none { fill: none }"
        yield ".dashed { stroke-dasharray: 4 3 }"
        yield ".thick { stroke-width: 3 }"
        for name in sorted(used):
            yield _rule(name, COLOURS[name][0])
        yield "@media (prefers-color-scheme: dark) {"
        for name in sorted(used):
            yield _rule(name, COLOURS[name][1])
        yield "}"


def _rule(name: str, colour: str) -> str:
    return f".f-{name} {{ fill: {colour} }} .s-{name} {{ stroke: {colour} }}"
