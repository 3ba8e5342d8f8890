"""Figures as text for people: a dash stands for what is not known."""

from __future__ import annotations

from math import ceil, floor


def count_text(value: float | None) -> str:
    """Return a whole number for people; a dash if it is not known."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"


def mark_text(mark: int | None) -> str:
    """Return the ID of a last transaction: `none` for that of an empty log."""
    return "none" if mark == -1 else count_text(mark)


def rate_text(value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def age_text(seconds: float | None) -> str:
    """Return an age: `now`, `3 s ago`, `4 min ago`."""
    if seconds is None:
        return "never"
    if seconds < 1:
        return "now"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def span_text(least: float | None, most: float | None, *, is_current: bool) -> str:
    """Return a lag that is known within bounds: `3 s`, `3 to 5 s`, `at most 5 s`, `3 s or more`."""
    if least is None:
        return "\N{EN DASH}"
    if most is None:
        return f"{seconds_text(floor(least))} or more"
    low, high = floor(least), ceil(most)
    if not is_current:
        return f"at most {seconds_text(high)}"
    return seconds_text(high) if high - low <= 1 else f"{seconds_text(low)} to {seconds_text(high)}"


def seconds_text(seconds: float) -> str:
    """Return a whole number of seconds: `42 s`, `3 min 20 s`, `2.2 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return (
        f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def size_text(value: float | None) -> str:
    """Return a number of bytes: `1.5 GiB`."""
    if value is None:
        return "\N{EN DASH}"
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} bytes"


def milliseconds_text(seconds: float | None) -> str:
    return "\N{EN DASH}" if seconds is None else f"{seconds * 1000:,.1f} ms"


def bounds_text(bounds: tuple[float, float | None] | None) -> str:
    """Return a duration that is known within bounds, in seconds: `1 to 2.5 ms`."""
    if bounds is None:
        return "\N{EN DASH}"
    low, high = bounds
    if high is None:
        return f"{low:g} s or more"
    if high > 1:
        return f"{low:g} to {high:g} s"
    return f"{low * 1000:g} to {high * 1000:g} ms"
