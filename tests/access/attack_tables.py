"""The tables of attacks on `docs/design/hostile-peers.md`, one per section."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "hostile-peers.md"


def rows_of(heading: str) -> list[tuple[str, ...]]:
    """Return who does what, what came of it, and the function that tries it, per row."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+?) \| (.+?) \| `(\w+)` \|$", section, re.MULTILINE)
