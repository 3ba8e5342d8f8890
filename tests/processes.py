"""What the system says of a running process."""

from __future__ import annotations

from pathlib import Path


def proportional_bytes(pid: int) -> int:
    """Memory of the process; what it shares with others counts in part (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no Pss of process {pid}")
