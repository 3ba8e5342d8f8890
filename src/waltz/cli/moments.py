"""Times and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(milliseconds: int, precision: str = "milliseconds") -> str:
    """Return a time, in milliseconds since 1970, in UTC to the `precision` of `isoformat`; the
    number itself if no calendar has it."""
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms since 1970"
    return found.isoformat(timespec=precision).replace("+00:00", "Z")


def age_text(milliseconds: int) -> str:
    """Return an age, in the unit in which it is a short number."""
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
