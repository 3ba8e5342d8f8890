"""Quotas: the limits of a principal at one server, per second and at one time.

Owns the kinds of limits, their bounds, and the least of several. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

RATE_BYTES_MIN: Final = 16 * 1024
"""The least rate in bytes per second: with less, one read from a connection would be paid for
longer than `limits.READ_BYTES_MAX` / `RATE_BYTES_MIN` = 16 seconds."""

RATE_BYTES_MAX: Final = 1 << 40
"""The highest rate in bytes per second; more is no limit."""

RATE_APPENDS_MAX: Final = 1_000_000_000
"""The highest rate in appends per second."""

QUOTA_CONNECTIONS_MAX: Final = 1_000_000
"""The most connections that a quota can allow; a server has fewer."""

BYTE_UNITS: Final = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}


class Quota(NamedTuple):
    """The limits of a principal at one server; None: no limit.

    `append_bytes` are bytes per second of the data and lock hashes of appends, `appends` appends
    per second, `read_bytes` bytes per second that the server sends, `connections` TCP connections
    at one time.
    """

    append_bytes: int | None = None
    appends: int | None = None
    read_bytes: int | None = None
    connections: int | None = None


NO_QUOTA: Final = Quota()

BYTE_RATES: Final = frozenset({"append_bytes", "read_bytes"})
"""The limits in bytes per second."""


def least(quotas: Iterable[Quota]) -> Quota:
    """Return the quota that keeps each limit of all of them."""
    return Quota(
        *(min((each for each in limits if each is not None), default=None)
          for limits in zip(NO_QUOTA, *quotas, strict=True))
    )  # fmt: skip


def shown_limit(name: str, limit: int | None) -> str:
    """Return a limit as it is written in a policy; `none` if there is none."""
    if limit is None:
        return "none"
    if name not in BYTE_RATES:
        return str(limit) if name == "connections" else f"{limit}/s"
    unit = next(each for each in reversed(BYTE_UNITS) if not limit % BYTE_UNITS[each])
    return f"{limit // BYTE_UNITS[unit]}{unit}/s"
