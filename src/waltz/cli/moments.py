"""Times and ages as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final


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


def interval_text(low: int | None, high: int | None) -> str:
    """Return when something happened: after `low` and before `high`, each in milliseconds since
    1970, of which at least one is known."""
    if low is not None and high is not None:
        return f"between {moment(low)} and {moment(high)}"
    return f"after {moment(low)}" if low is not None else f"before {moment(high or 0)}"


def copies_apart(milliseconds: int) -> str:
    """Return what follows a time that is computed from copies whose times are so far apart."""
    if not milliseconds:
        return ""
    return (
        f"; the times of the copies are {milliseconds / 1000:g} s apart: some came later, or clocks"
        " disagree"
    )


AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|min|m|h|d)(?: ago)?")
UNIT_SECONDS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
MOMENT_CHARACTERS_MAX: Final = 40


def parse_moment(text: str, now_milliseconds: int) -> int | None:
    """Return the time that `text` says, in milliseconds since 1970: a date and a time, in UTC
    unless they have a zone, or an age such as `10 min ago` or `2h`. None: it says none."""
    given = text.strip()
    if len(given) > MOMENT_CHARACTERS_MAX or not given.isascii():
        return None
    if (found := AGO.fullmatch(given)) is not None:
        return now_milliseconds - round(float(found[1]) * UNIT_SECONDS[found[2]] * 1000)
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
