"""What the replicas of a new session are told of clients, by value."""

from __future__ import annotations

import pytest

from waltz.store import noted_clients
from waltz.store.noted_clients import NotedClients
from waltz.types import ClientId
from waltz.wire.storage_protocol import ClientNote


def note(client_id: int, name: str) -> ClientNote:
    return ClientNote(ClientId(client_id), name, "", "h:1", "")


def told(noted: NotedClients) -> str:
    found = noted.all()
    return "nothing" if found is None else " ".join(each.name for each in found)


def test_all_clients_are_told_and_of_one_id_the_later_comes_last() -> None:
    noted = NotedClients()
    assert told(noted) == ""
    noted.add([note(1, "a"), note(2, "b")])
    noted.add([note(1, "c")])
    assert told(noted) == "a b c", "what the first one has sent may wait for the session"
    noted.session_opened()
    assert told(noted) == "b c"
    noted.add([note(2, "d")])
    assert told(noted) == "b c d"


def test_if_there_are_too_many_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted_clients, "CLIENTS_KNOWN_MAX", 4)
    noted = NotedClients()
    for number in range(10):
        noted.add([note(1, str(number))])
    assert told(noted).split()[-1] == "9"
    assert len(told(noted).split()) <= 4
    noted.add([note(2, "b"), note(3, "c")])
    assert "b c" in told(noted)
    noted.add([note(4, "d"), note(5, "e")])
    assert told(noted) == "nothing"
    noted.session_opened()
    assert told(noted) == "nothing"
