"""The clients that have mounted a partition, as the replicas of a new session are told of them.

Owns the order: of two clients with one ID the later one comes last. A replica that was told all
clients when a session started, and each one that mounts before its appends, knows who may have
written what the session brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.types import ClientId
from waltz.wire.storage_protocol import ClientNote

CLIENTS_KNOWN_MAX: Final = 10_000
"""Notes that are kept per partition. Beyond, the replicas of later sessions are told nothing until
the partition is opened anew, and nobody can tell then who wrote what these sessions brought."""


class NotedClients:
    """See the module."""

    def __init__(self) -> None:
        self._latest: dict[ClientId, ClientNote] = {}
        """The latest note of each client up to the last opening of a session."""
        self._recent: list[ClientNote] = []
        """All notes since: appends of a client that has lost its ID to another one may wait for the
        next session."""
        self._is_complete = True

    def add(self, notes: Sequence[ClientNote]) -> None:
        """Take note of mounts, in order."""
        if not self._is_complete:
            return
        self._recent += notes
        if len(self._recent) + len(self._latest) > CLIENTS_KNOWN_MAX:
            self._settle()
        if len(self._latest) > CLIENTS_KNOWN_MAX // 2:
            self._is_complete = False
            self._latest.clear()

    def all(self) -> Sequence[ClientNote] | None:
        """Return the notes that a replica is told when a session starts there; None: there were too
        many."""
        return [*self._latest.values(), *self._recent] if self._is_complete else None

    def session_opened(self) -> None:
        """Take it that what waited for a session is on its way."""
        self._settle()

    def _settle(self) -> None:
        for note in self._recent:
            self._latest.pop(note.client_id, None)
            self._latest[note.client_id] = note
        self._recent = []
