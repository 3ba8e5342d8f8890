"""Shared by the commands of `waltz disk`: taking a path, and showing sizes and times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from waltz.storage.inspection.survey import InspectionTarget, find_target
from waltz.system.real_disk import RealDisk

disk_door = RealDisk()


def path_argument(name: str) -> Callable[[Any], Any]:
    return click.argument("path", metavar=name, type=click.Path(path_type=Path))


def target_at(path: Path) -> InspectionTarget:
    """Return what is at `path`. Raises ConfigurationError, OSError."""
    return find_target(disk_door, str(path.absolute()))


def human_bytes(count: int) -> str:
    """Return the number with a unit that makes it short; exact below 1024."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown(number: int | None) -> str:
    return "-" if number is None else str(number)
