"""Processor time and memory of running processes, from the system. Linux only; elsewhere there are
no figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the processor time of the process, all its threads together; 0 if it has gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / TICKS_PER_SECOND


def processor_by_role(pids: Mapping[int, str]) -> dict[str, float]:
    """Return the processor seconds of all processes of a role together."""
    found: dict[str, float] = {}
    for pid, role in pids.items():
        found[role] = found.get(role, 0.0) + processor_seconds(pid)
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory of the process, shared pages in full (RSS); 0 if it has gone."""
    return _memory(pid, "Rss:")


def proportional_bytes(pid: int) -> int:
    """Return the memory of the process, shared pages in part (PSS); 0 if it has gone."""
    return _memory(pid, "Pss:")


def _memory(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
