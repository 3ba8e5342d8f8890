"""Free space of the file system: when to refuse appends, so that everything else still works.

Owns the two thresholds, the count of bytes admitted since the last reading, and when the reserve is
released and taken again. Is fed with readings and the time; `reserve.py` has the file,
`upkeep_shell.py` the clock.

    ok      appends are taken
    low     appends are taken, and the operator is warned
    short   appends are refused; reads, session requests, truncation and repair still work

The state follows the disk alone, without an operator: it ends as soon as a reading allows.
"""

from __future__ import annotations

import errno
import math
import re
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Final

from waltz.errors import ConfigurationError, UnavailableError
from waltz.host import Space
from waltz.limits import DISK_FREE_BYTES_MIN, DISK_FREE_PERCENT_MIN, SPACE_RESERVE_BYTES

SPACE_LOW_FACTOR: Final = 2
"""The operator is warned below this many times the minimum."""

SPACE_RETURN_FACTOR: Final = 1.1
"""A state ends once this many times its threshold is free again."""

SPACE_HOLD_SECONDS: Final = 5.0
"""A file system counts as full this long after a write found it full, whatever it reports."""


UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_SETTING: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(%|[KMGT]iB|)")


def size_text(size_bytes: int) -> str:
    """Return the size for people, `1.5 GiB`."""
    unit = [unit for unit, size in UNITS.items() if size <= max(1, size_bytes)][-1]
    return f"{size_bytes / UNITS[unit]:.1f} {unit}" if unit else f"{size_bytes} bytes"


def is_no_space(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, is a full file system or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


@dataclass(frozen=True, slots=True)
class FreeMinimum:
    """storage.diskFreeMin: the space kept free, the smaller of a share and a number of bytes."""

    percent: float = DISK_FREE_PERCENT_MIN
    size_bytes: int = DISK_FREE_BYTES_MIN

    @classmethod
    def parse(cls, text: str) -> FreeMinimum:
        """Read `5%`, `64MiB` or a plain number of bytes. Raises ConfigurationError."""
        found = _SETTING.fullmatch(text.strip())
        number = math.inf if found is None else float(found[1])
        if found is None or not math.isfinite(number) or (found[2] == "%" and number > 100):
            raise ConfigurationError(
                f"storage.diskFreeMin is {text!r}; expected a percentage like 5% or a size like"
                " 64MiB"
            )
        if found[2] == "%":
            return cls(number, sys.maxsize)
        return cls(100.0, int(number * UNITS[found[2]]))

    def of(self, total_bytes: int) -> int:
        """Return the minimum in bytes on a file system of `total_bytes`."""
        return min(int(total_bytes * self.percent / 100), self.size_bytes)


FREE_MINIMUM: Final = FreeMinimum()


class SpaceState(Enum):
    OK = "ok"
    LOW = "low"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file system's free space, and how many of the admitted bytes it already included."""

    space: Space
    settled_bytes: int


class SpaceAccount:
    """One partition's share of the admitted bytes; used by one thread at a time."""

    def __init__(self, guard: SpaceGuard) -> None:
        self._guard = guard
        self.admitted_bytes = 0
        self.settled_bytes = 0

    def check(self, size_bytes: int) -> None:
        """Admit `size_bytes`. Raises UnavailableError with the numbers and the remedy."""
        # Counted before it is judged: if two partitions ask at once, one sees the other's bytes.
        self.admitted_bytes += size_bytes
        if not self._guard.is_admitting():
            self.admitted_bytes -= size_bytes
            raise UnavailableError(self._guard.refusal())

    def settle(self) -> None:
        """Note that all admitted bytes are written by now, or never will be."""
        self.settled_bytes = self.admitted_bytes


class SpaceGuard:
    """The free space of one node. Only one thread may call `observe`, `meet_full` and
    `reserve_wanted`."""

    def __init__(self, path: str, minimum: FreeMinimum, space: Space) -> None:
        """`space` is the first reading of the file system of `path`."""
        self.state = SpaceState.SHORT
        """Short until `observe` is told that there is a reserve."""
        self._path = path
        self._minimum = minimum
        self.minimum_bytes = minimum.of(space.total_bytes)
        """The bytes that have to stay free."""
        self._reading = _Reading(space, 0)
        self.trouble: str | None = None
        """Why the free space could not be read at the last look, so that all figures are older;
        None: it could."""
        self.reserve_trouble: str | None = None
        """Why the reserve cannot be taken although the file system shows room for it; None: it can,
        or is held, or there is no room."""
        self._has_reserve = False
        self._accounts: tuple[SpaceAccount, ...] = ()
        self._held_until: float | None = None
        """Until when a file system that a write found full counts as full."""

    def account(self) -> SpaceAccount:
        """Return the account of one more partition."""
        account = SpaceAccount(self)
        self._accounts = (*self._accounts, account)
        return account

    @property
    def free_bytes(self) -> int:
        """The bytes that are free once all admitted bytes are written."""
        reading = self._reading
        free_bytes = reading.space.free_bytes + reading.settled_bytes
        for account in self._accounts:
            free_bytes -= account.admitted_bytes
        return free_bytes

    @property
    def total_bytes(self) -> int:
        return self._reading.space.total_bytes

    def is_admitting(self) -> bool:
        """Whether all admitted bytes fit; if not, no more are admitted before the next reading that
        allows it."""
        if self.state is not SpaceState.SHORT and self.free_bytes < self.minimum_bytes:
            self.state = SpaceState.SHORT
        return self.state is not SpaceState.SHORT

    def refusal(self) -> str:
        """Return the answer to appends while the state is short."""
        if self.reserve_trouble is not None and not self._has_reserve:
            return (
                f"no space for appends: the file system of {self._path} shows"
                f" {size_text(max(0, self.free_bytes))} free of {size_text(self.total_bytes)}, and"
                f" the node's reserve of {size_text(SPACE_RESERVE_BYTES)} cannot be taken:"
                f" {self.reserve_trouble}. Is a quota used up? Appends go on by themselves once it"
                " can be taken"
            )
        keeps_reserve = self._has_reserve and self.free_bytes >= SPACE_RESERVE_BYTES
        size = self._return_bytes() if keeps_reserve else self._reserve_bytes()
        full = " and a write has just found it full" if self._held_until is not None else ""
        return (
            f"no space for appends: the file system of {self._path} has"
            f" {size_text(max(0, self.free_bytes))} free of {size_text(self.total_bytes)}{full};"
            f" {size_text(self.minimum_bytes)} have to stay free (storage.diskFreeMin). Make room"
            f" there: appends go on by themselves once {size_text(size)} are free"
        )

    def settled_bytes(self) -> int:
        """Return the admitted bytes that a reading taken from now on includes."""
        return sum(account.settled_bytes for account in self._accounts)

    def observe(
        self, space: Space, now: float, *, settled_bytes: int, has_reserve: bool
    ) -> SpaceState:
        """Take a reading; `settled_bytes` was asked for before it was taken. Return the state."""
        self._reading = _Reading(space, settled_bytes)
        self.minimum_bytes = self._minimum.of(space.total_bytes)
        self._has_reserve = has_reserve
        free, minimum = self.free_bytes, self.minimum_bytes
        was = self.state
        if self._held_until is not None and now >= self._held_until:
            self._held_until = None
        if free < minimum or not has_reserve or self._held_until is not None:
            self.state = SpaceState.SHORT
        elif was is SpaceState.SHORT and free < self._return_bytes():
            pass
        elif free < minimum * SPACE_LOW_FACTOR or (
            was is SpaceState.LOW and free < minimum * SPACE_LOW_FACTOR * SPACE_RETURN_FACTOR
        ):
            self.state = SpaceState.LOW
        else:
            self.state = SpaceState.OK
        return self.state

    def meet_full(self, now: float) -> None:
        """Note that a write has found the file system full, whatever the readings say."""
        self.state = SpaceState.SHORT
        self._held_until = now + SPACE_HOLD_SECONDS

    def reserve_wanted(self, *, held: bool) -> bool:
        """Whether the reserve should be held from now on.

        The two thresholds are so far apart that a released reserve is not taken again at once.
        """
        free = self._reading.space.free_bytes
        if held:
            return free >= SPACE_RESERVE_BYTES and self._held_until is None
        return self._held_until is None and free >= self._reserve_bytes()

    def _return_bytes(self) -> int:
        """Return the free bytes at which a node that holds its reserve takes appends again."""
        return int(self.minimum_bytes * SPACE_RETURN_FACTOR)

    def _reserve_bytes(self) -> int:
        """Return the free bytes at which a node takes its reserve again."""
        return SPACE_RESERVE_BYTES + max(self._return_bytes(), 2 * SPACE_RESERVE_BYTES)
