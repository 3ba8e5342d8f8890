"""The pictures there are: the name of each file, and what draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from docs.pictures import lanes, recoveries, rooms

FOLDER: Final = Path(__file__).parent

PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "rooms.svg": rooms.draw,
    "append.svg": partial(lanes.draw, FOLDER / "append.txt"),
    "change-of-session.svg": partial(lanes.draw, FOLDER / "change-of-session.txt"),
    "recoveries.svg": partial(recoveries.draw, FOLDER / "recoveries.yaml"),
}
