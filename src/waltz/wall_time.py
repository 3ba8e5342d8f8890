"""Wall times as applications have them, and as journals do: milliseconds since 1970.

Owns the way from one to the other. No clock is read here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from waltz.errors import LocalProtocolError

__all__ = ["datetime", "milliseconds_of", "time_at"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_at(milliseconds: int | None) -> datetime | None:
    """Return the time in UTC; None for None, or if no calendar has it."""
    try:
        return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def milliseconds_of(moment: datetime) -> int:
    """Return the last millisecond that is not after `moment`. Raises LocalProtocolError: it has no
    time zone."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise LocalProtocolError(
            f"the time {moment.isoformat()} has no time zone; give one, such as"
            " datetime.now(timezone.utc)"
        )
    return (moment - EPOCH) // timedelta(milliseconds=1)
