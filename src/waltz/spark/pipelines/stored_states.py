"""The states of a database in an object store: one object for each, in the order of their numbers.

A run has a copy of the newest state on its own disk. It makes the next state an object that must
not be there yet: of two runs one makes it, the other is told. So no lock is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from waltz.archive.archive_target import Target
from waltz.errors import ConfigurationError, CorruptionError, NotFoundError, VersionConflictError
from waltz.spark.codes import INVALID_TABLES, TABLES_CONFLICT

STATES: Final = "waltz_state"
"""The directory of the states; no table can have this name."""

STATE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a state. Transactions put aside are in it; a run that would exceed this ends."""

STATES_KEPT: Final = 4
"""States that are left when a new one is made: a run may just be reading one of them."""


class StoredStates:
    """The states below one prefix of a bucket, and the one of them that a copy is of."""

    def __init__(self, objects: Target, url: str) -> None:
        self._objects = objects
        self._url = url
        self._number = 0
        self._content = b""

    @property
    def place(self) -> str:
        """The directory of the states, as a message names it."""
        return f"{self._url}/{STATES}"

    def newest(self) -> int:
        """Return the number of the newest state; 0 if there is none."""
        return max((number for number, _ in self._listed()), default=0)

    def has_newer(self) -> bool:
        """Return whether there is a newer state than that of the copy."""
        return self.newest() > self._number

    def fetch(self, path: Path) -> None:
        """Have a copy of the newest state on this disk."""
        while True:
            number = self.newest()
            try:
                path.write_bytes(self._objects.get(_path(number), STATE_BYTES_MAX))
            except NotFoundError:  # so there are newer ones
                if self.newest() == number:
                    raise
                continue
            self._number = number
            return

    def note_content(self, content: bytes) -> None:
        """Note the content of the copy as SQLite has opened it: the same is no new state."""
        self._content = content

    def forget(self) -> None:
        """Note that the copy is of no state, so that the newest is fetched anew."""
        self._number, self._content = 0, b""

    def publish(self, content: bytes) -> None:
        """Make what the copy has the next state. Raises VersionConflictError: another run has made
        one meanwhile; what this run had in its copy counts for nothing then."""
        if content == self._content:
            return
        if len(content) > STATE_BYTES_MAX:
            raise ConfigurationError(
                f"{INVALID_TABLES} {self.place} would have {len(content):,} bytes, at most"
                f" {STATE_BYTES_MAX:,}: too many transactions were put aside; correct `decode`"
            )
        number = self._number + 1
        path = _path(number)
        # A put that was answered too late was ours if the object is what we have put.
        is_ours = self._objects.put_if_absent(path, content) or (
            self._objects.get(path, STATE_BYTES_MAX) == content
        )
        # Of a run that was asleep for long the next states may have come and gone.
        states = sorted(self._listed())
        if not is_ours or states[-1][0] != number:
            if is_ours:
                self._objects.delete(path)
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self._url}: another run has added to it; run again"
            )
        self._number, self._content = number, content
        for _, each in states[:-STATES_KEPT]:
            self._objects.delete(each)

    def _listed(self) -> Iterator[tuple[int, str]]:
        for each in self._objects.list(STATES):
            number = each.path.removeprefix(f"{STATES}/").removesuffix(".db")
            if not number.isdecimal():
                raise CorruptionError(
                    f"{INVALID_TABLES} {self._url}/{each.path} is no state; remove it"
                )
            yield int(number), each.path


def _path(number: int) -> str:
    return f"{STATES}/{number:012}.db"
