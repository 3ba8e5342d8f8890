"""Who wrote a transaction, by what journals and servers tell of its client ID, by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waltz.errors import UnavailableError
from waltz.operators.authors import Answers, author_of
from waltz.operators.client_questions_shell import ClientMount, MountedClient, ServerClients
from waltz.operators.journals_shell import JournalNotes
from waltz.types import Address, ClientId, Generation, PartitionId
from waltz.wire.journal_entries import ClientNoted

P0, P1 = PartitionId(0), PartitionId(1)
SERVER, OTHER = Address("v1", 1), Address("v2", 1)
THEN = 1_700_000_000_000
EARLIER = THEN - 10_000


def client(
    client_id: int, *partitions: PartitionId, name: str = "orders", address: str = "h:8"
) -> MountedClient:
    mounts = tuple(ClientMount(each, None, None, None, None, None, False) for each in partitions)
    return MountedClient(
        1, ClientId(client_id), name, "orders-7", "app.py", "0.1.0", False, "CN=orders",
        address, 5, True, True, 1.0, 0.1, mounts, 0,
    )  # fmt: skip


def clients(*found: MountedClient) -> ServerClients:
    return ServerClients(0.0, {P0: Generation(1)}, {}, found, {}, True)


def noted(at: int, name: str = "orders", address: str = "h:8") -> ClientNoted:
    return ClientNoted(ClientId(7), at, name, "CN=orders", address, "app.py 0.1.0")


def journal(*notes: ClientNoted, holders: Sequence[ClientNoted] | None = None) -> JournalNotes:
    """Return the notes of a journal which tells that the author is one of them, or of `holders`."""
    return JournalNotes(notes, notes if holders is None else holders)


def told(*journals: JournalNotes, answers: Answers | None = None) -> tuple[str, str, bool] | str:
    """Return name, instance, and whether it is recorded; or why there is no author."""
    author, trouble = author_of(ClientId(7), P0, answers or {}, journals)
    if author is None:
        return trouble
    assert not trouble
    return author.name, author.instance, author.is_recorded


def test_the_author_is_the_client_that_a_journal_tells() -> None:
    before, then = noted(EARLIER - 1, "before"), noted(EARLIER, "then")
    assert told(journal(before, then, holders=[then])) == ("then", "", True)
    assert "no journal" in str(told(journal()))


def test_two_that_had_the_client_id_about_that_time_leave_it_open() -> None:
    found = told(journal(noted(EARLIER), noted(THEN, "")))
    assert found == "2 clients had its client ID about that time: one without a name, orders"
    found = told(journal(noted(EARLIER)), journal(noted(EARLIER, "other")))
    assert "2 clients" in str(found)


def test_the_instance_is_that_of_the_same_connection_only() -> None:
    here = {SERVER: clients(client(7, P1), client(8, P0), client(7, P0))}
    assert told(journal(noted(THEN)), answers=here) == ("orders", "orders-7", True)
    for other in (client(7, P0, address="h:9"), client(7, P0, name="stranger")):
        assert told(journal(noted(THEN)), answers={SERVER: clients(other)}) == ("orders", "", True)
    moved = journal(noted(EARLIER, address="h:7"), noted(THEN))
    assert told(moved, answers=here) == ("orders", "", True), "it may have come by either"


def test_without_a_note_the_client_that_has_the_id_now_is_named_as_that() -> None:
    here = {SERVER: clients(client(7, P0)), OTHER: clients()}
    assert told(answers=here) == ("orders", "orders-7", False)
    author, _ = author_of(ClientId(7), P0, here, [])
    assert author is not None
    assert author.source == ("server v1:1 has it mounted now, no journal tells who had the ID then")
    both = {SERVER: clients(client(7, P0)), OTHER: clients(client(7, P0, name="stranger"))}
    assert told(answers=both) == "2 clients had its client ID now: orders, stranger"


def test_a_journal_that_does_not_tell_proves_less() -> None:
    notes = noted(EARLIER - 10, "before"), noted(EARLIER, "then")
    unsure = journal(*notes, holders=())
    assert told(unsure) == "2 clients had its client ID at some time: before, then"
    assert told(unsure, journal(*notes, holders=notes[1:])) == ("then", "", True)
    assert told(journal(noted(THEN), holders=())) == ("orders", "", False)


def test_nobody_is_named_if_nobody_tells() -> None:
    answers: dict[Address, ServerClients | UnavailableError] = {
        SERVER: clients(client(7, P1)),
        OTHER: UnavailableError("silent"),
    }
    assert told(answers=answers) == (
        "it is not mounted now, and no journal that could be read has it; 1 of 2 servers do not"
        " say who is mounted"
    )


def test_a_server_that_names_only_some_of_its_clients_does_not_say_who_is_mounted() -> None:
    answers = {SERVER: replace(clients(), is_complete=False), OTHER: clients()}
    found = str(told(journal(), answers=answers))
    assert found.endswith("; 1 of 2 servers do not say who is mounted")
