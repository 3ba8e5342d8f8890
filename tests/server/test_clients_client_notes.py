"""Notes of clients for the journals of a partition's replicas, by value."""

from __future__ import annotations

import pytest

from waltz.server.clients import client_notes
from waltz.server.clients.client_notes import ClientNotes, note_of
from waltz.server.clients.mounted_clients import ConnectionFacts
from waltz.types import ClientId
from waltz.wire.client_label import ClientLabel
from waltz.wire.storage_protocol import ClientNote


def facts(name: str | None, principal: str = "") -> ConnectionFacts:
    label = None if name is None else ClientLabel(name, "orders-7", "app.py", "0.1.0")
    return ConnectionFacts(1, label, principal, "h:1", 5, True, False, 0.0, 0.0)


def test_a_note_has_what_the_client_says_and_what_its_connection_shows() -> None:
    assert note_of(ClientId(7), facts("orders", "CN=orders")) == ClientNote(
        ClientId(7), "orders", "CN=orders", "h:1", "app.py 0.1.0"
    )
    assert note_of(ClientId(7), facts(None)) == ClientNote(ClientId(7), "", "", "h:1", "")


def test_mounts_that_come_together_are_one_message_and_repeated_ones_none() -> None:
    notes = ClientNotes()
    assert notes.add(ClientId(7), facts("orders"))
    assert not notes.add(ClientId(8), facts("billing"))
    assert not notes.add(ClientId(7), facts("orders"))
    assert [each.name for each in notes.take()] == ["orders", "billing"]
    assert notes.take() == ()
    assert not notes.add(ClientId(7), facts("orders"))
    assert notes.add(ClientId(7), facts("other"))
    assert not notes.add(ClientId(7), facts("third")), "its first note waits already"
    assert [each.name for each in notes.take()] == ["third"]


def test_the_notes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_notes, "CLIENT_NOTES_MAX", 2)
    notes = ClientNotes()
    for number in range(5):
        notes.add(ClientId(number), facts("orders"))
    assert [each.client_id for each in notes.take()] == [0, 1]
    assert notes.add(ClientId(9), facts("orders"))
