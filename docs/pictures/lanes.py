"""Who sends what to whom, one below the other, from a few lines of text.

    title: The life of one append
    lanes: client | server | storage node 1 | storage node 2
    1 client > server: append requests         an arrow; to several: `server > a, b: ...`
    2 at server: check the locks               what a lane does
    3 sync at storage node 1: write and sync   the same, in amber: it is on disk afterwards
    4 commit at server: two of three           the same, in green: it is decided
    -- the feed                                a line across, with words

The number in front names the step in the text next to the picture; it may be left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.pictures.drawing import MARGIN, SMALL, Drawing, width, wrapped

HEAD: Final = 34
LINE: Final = 15
GAP: Final = 12
NUMBERS: Final = 26
"""The room on the left for the numbers of steps."""

NOTES: Final = {"at": ("box", "edge"), "sync at": ("disk", "amber"), "commit at": ("good", "firm")}
ARROW: Final = re.compile(r"(?:(\d+) )?([^>:]+) > ([^:]+): (.+)")
NOTE: Final = re.compile(r"(?:(\d+) )?(at|sync at|commit at) ([^:]+): (.+)")


class Lanes:
    """A picture being drawn from the top to the bottom."""

    def __init__(self, title: str, names: list[str], lane: float = 172) -> None:
        self.drawing = Drawing(title)
        self.lane = lane
        self.at = {
            name: MARGIN + NUMBERS + lane * (index + 0.5) for index, name in enumerate(names)
        }
        self.y = MARGIN + HEAD + GAP
        self.number = ""

    def numbered(self, number: str | None) -> None:
        if number and number != self.number:
            self.number = number
            self.drawing.words(MARGIN, self.y + LINE, number, "faint", bold=True)

    def note(self, kind: str, names: list[str], says: str) -> None:
        fill, stroke = NOTES[kind]
        wide = self.lane - 14
        lines = wrapped(says, wide - 12, SMALL)
        high = LINE * len(lines) + 9
        for name in names:
            self.drawing.box(self.at[name] - wide / 2, self.y, wide, high, fill, stroke)
            for index, line in enumerate(lines):
                y = self.y + LINE * (index + 1)
                self.drawing.words(self.at[name], y, line, anchor="middle", size=SMALL)
        self.y += high + GAP

    def arrow(self, source: str, targets: list[str], says: str) -> None:
        """Draw one line from `source`, with a head at each target, below its words."""
        start = self.at[source]
        ends = sorted((self.at[each] for each in targets), key=lambda x: abs(x - start))
        assert len({x > start for x in ends}) == 1, f"both ways from {source}: {targets}"
        direction = 1 if ends[0] > start else -1
        room = abs(ends[0] - start) - 20
        lines = wrapped(says, room, SMALL)
        for line in lines:
            self.y += LINE
            middle = (start + ends[0]) / 2
            wide = width(line, SMALL)
            self.drawing.box(middle - wide / 2 - 2, self.y - 11, wide + 4, LINE, "paper")
            self.drawing.words(middle, self.y, line, anchor="middle", size=SMALL)
        self.y += 9
        self.drawing.line([(start, self.y), (ends[-1], self.y)], "edge")
        for end in ends:
            self.drawing.head(end, self.y, direction)
        self.y += GAP

    def across(self, says: str) -> None:
        self.y += 6
        left, right = MARGIN, MARGIN + NUMBERS + self.lane * len(self.at)
        self.drawing.line([(left, self.y), (right, self.y)], "faint dashed")
        self.y += LINE + 2
        self.drawing.words(left, self.y, says, "faint", bold=True, size=SMALL)
        self.y += GAP

    def svg(self) -> str:
        """Return the picture, with the lanes behind everything."""
        drawn, self.drawing.elements = self.drawing.elements, []
        for name, x in self.at.items():
            self.drawing.line([(x, MARGIN + HEAD), (x, self.y)], "line dashed")
            wide = self.lane - 14
            self.drawing.box(x - wide / 2, MARGIN, wide, HEAD, "box", "edge")
            assert width(name) * 1.1 < wide, name
            self.drawing.words(x, MARGIN + HEAD / 2 + 5, name, anchor="middle", bold=True)
        self.drawing.elements += drawn
        left: float = MARGIN + NUMBERS
        for kind, says in (("sync at", "on disk afterwards"), ("commit at", "decided")):
            self.drawing.box(left, self.y + GAP, LINE, LINE, *NOTES[kind])
            self.drawing.words(left + LINE + 8, self.y + GAP + 12, says, "faint", size=SMALL)
            left += LINE + 30 + width(says, SMALL)
        return self.drawing.svg()


def draw(source: Path) -> str:
    """Return the picture that the file describes."""
    title, names, *lines = [line for line in source.read_text().splitlines() if line]
    lanes = Lanes(title.removeprefix("title: "), names.removeprefix("lanes: ").split(" | "))
    for line in lines:
        if line.startswith("-- "):
            lanes.across(line.removeprefix("-- "))
        elif match := NOTE.fullmatch(line):
            number, kind, where, says = match.groups()
            lanes.numbered(number)
            lanes.note(kind, where.split(", "), says)
        else:
            match = ARROW.fullmatch(line)
            assert match, f"{source.name}: {line!r} is neither an arrow nor a note"
            number, sender, where, says = match.groups()
            lanes.numbered(number)
            lanes.arrow(sender, where.split(", "), says)
    return lanes.svg()
