"""Times and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(milliseconds: int) -> str:
    """Return a time, in milliseconds since 1970, for people."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms since 1970"


def age_text(milliseconds: int) -> str:
    """Return an age, in the unit in which it is a short number."""
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
