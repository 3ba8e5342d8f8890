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
    for client_id, name in ((7, "orders"), (8, "billing"), (7, "orders")):
        notes.add(ClientId(client_id), facts(name))
    assert notes.count == 2
    assert [each.name for each in notes.take()] == ["orders", "billing"]
    assert notes.take() == ()
    notes.add(ClientId(7), facts("orders"))
    assert notes.count == 0


def test_clients_that_take_an_id_over_from_each_other_are_all_noted_in_order() -> None:
    notes = ClientNotes()
    for name in ("orders", "stranger", "orders"):
        notes.add(ClientId(7), facts(name))
    assert [each.name for each in notes.take()] == ["orders", "stranger", "orders"]


def test_a_client_whose_connection_is_gone_is_noted_as_one_that_nobody_knows() -> None:
    notes = ClientNotes()
    notes.add(ClientId(7), facts("orders"))
    notes.add(ClientId(7), None)
    assert notes.take()[1] == ClientNote(ClientId(7), "", "", "", "")


def test_what_is_remembered_of_mounts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_notes, "CLIENT_NOTES_MAX", 2)
    notes = ClientNotes()
    for number in (0, 1, 2, 0):
        notes.add(ClientId(number), facts("orders"))
    assert [each.client_id for each in notes.take()] == [0, 1, 2, 0], "noted twice, never missed"
