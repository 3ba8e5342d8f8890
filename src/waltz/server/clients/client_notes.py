"""Notes of the clients that have mounted a partition, for the journals of its replicas.

Owns what is noted of a client, and that no note is made twice in a row. Knows no replica.
"""

from __future__ import annotations

from typing import Final

from waltz.server.clients.mounted_clients import ConnectionFacts
from waltz.types import ClientId
from waltz.wire.storage_protocol import CLIENT_NOTES_MAX, ClientNote

NOTES_PAUSE_SECONDS: Final = 1.0
"""From the first mount to the message to the replicas, which has all that follow in between."""


class ClientNotes:
    """The notes of one partition that are not sent yet."""

    def __init__(self) -> None:
        self._latest: dict[ClientId, ClientNote] = {}
        """The latest note of each client, at most CLIENT_NOTES_MAX, so that mounts that are
        repeated are noted once."""
        self._unsent: dict[ClientId, ClientNote] = {}

    def add(self, client_id: ClientId, facts: ConnectionFacts) -> bool:
        """Take note of a mount; return whether there was nothing to send before, and is now.

        Beyond CLIENT_NOTES_MAX clients that wait to be sent, further ones are not noted.
        """
        note = note_of(client_id, facts)
        if self._latest.get(client_id) == note or len(self._unsent) >= CLIENT_NOTES_MAX:
            return False
        if len(self._latest) >= CLIENT_NOTES_MAX:
            self._latest.clear()
        had_none = not self._unsent
        self._latest[client_id] = self._unsent[client_id] = note
        return had_none

    def take(self) -> tuple[ClientNote, ...]:
        """Return the notes that are to be sent, once."""
        notes, self._unsent = self._unsent, {}
        return tuple(notes.values())


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
