"""Notes of the clients that have mounted a partition, for the journals of its replicas.

Owns what is noted of a client, and that no note is made twice in a row. Knows no replica.
"""

from __future__ import annotations

from typing import Final

from waltz.server.clients.mounted_clients import ConnectionFacts
from waltz.types import ClientId
from waltz.wire.storage_protocol import CLIENT_NOTES_MAX, ClientNote

NOTES_PAUSE_SECONDS: Final = 1.0
"""From the first mount to the message to the replicas, which has all that follow in between; an
append comes after it in any case."""


class ClientNotes:
    """The notes of one partition that are not sent yet."""

    def __init__(self) -> None:
        self._latest: dict[ClientId, ClientNote] = {}
        """The latest note of each client, at most CLIENT_NOTES_MAX, so that mounts that are
        repeated are noted once."""
        self._unsent: list[ClientNote] = []

    def add(self, client_id: ClientId, facts: ConnectionFacts | None) -> None:
        """Take note of a mount. `facts` is None: the connection is gone already, and nobody knows
        whose it was, which is noted, too: what it sent may still be appended."""
        note = ClientNote(client_id, "", "", "", "") if facts is None else note_of(client_id, facts)
        if self._latest.get(client_id) == note:
            return
        if len(self._latest) >= CLIENT_NOTES_MAX:
            self._latest.clear()
        self._latest[client_id] = note
        self._unsent.append(note)

    @property
    def count(self) -> int:
        """The number of notes that are not sent yet. At CLIENT_NOTES_MAX they are to be sent."""
        return len(self._unsent)

    def take(self) -> tuple[ClientNote, ...]:
        """Return the notes that are to be sent, once, in order."""
        notes, self._unsent = self._unsent, []
        return tuple(notes)


def note_of(client_id: ClientId, facts: ConnectionFacts) -> ClientNote:
    """Return what is noted of a client: what it says of itself, and what its connection shows."""
    label = facts.label
    program = "" if label is None else f"{label.program} {label.version}".strip()
    return ClientNote(
        client_id,
        "" if label is None else label.name,
        facts.principal,
        facts.address,
        program,
    )
