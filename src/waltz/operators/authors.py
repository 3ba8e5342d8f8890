"""Finds the client that wrote a transaction: which one had its client ID at that time.

Owns the conclusion. A client ID alone names nobody for good: a stranger may mount under the ID of a
client that is away, and a coordinator that was set back gives IDs again. So journals are asked who
had the ID when the record came, and two that had it about that time make the author unknown; a
client that has the ID now is named only as that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from waltz.errors import UnavailableError
from waltz.log_fields import printable
from waltz.operators.client_questions_shell import MountedClient, ServerClients
from waltz.operators.journals_shell import JournalNotes
from waltz.types import Address, ClientId, PartitionId
from waltz.wire.journal_entries import ClientNoted

Answers: TypeAlias = Mapping[Address, ServerClients | UnavailableError]


@dataclass(frozen=True, slots=True)
class Author:
    """The client that wrote the transaction. A name is what the client called itself and proves
    nothing; `principal` is the name in its certificate. `source` says who tells.

    `is_recorded`: a journal tells that it had the client ID when the record came. Otherwise it has
    the ID now, or had it at some time, and nobody tells who had it then.
    """

    client_id: ClientId
    name: str
    instance: str
    program: str
    principal: str
    address: str
    source: str
    is_recorded: bool = True


class _Identity(NamedTuple):
    """The texts that tell one client from another."""

    name: str
    program: str
    principal: str


def author_of(
    client_id: ClientId,
    partition_id: PartitionId,
    answers: Answers,
    journals: Collection[JournalNotes],
) -> tuple[Author | None, str]:
    """Return the client that wrote a transaction; or None, and why nobody can tell."""
    mounted = list(_mounted(client_id, partition_id, answers))
    there = [each.holders for each in journals if each.holders]
    noted = [note for notes in there or [each.notes for each in journals] for note in notes]
    identities = {_identity_of_note(each) for each in noted}
    if not noted:
        identities = {_identity_of_client(client) for _, client in mounted}
    if len(identities) > 1:
        names = ", ".join(sorted(each.name or "one without a name" for each in identities))
        when = ("about that time" if there else "at some time") if noted else "now"
        return None, f"{len(identities)} clients had its client ID {when}: {names}"
    if not identities:
        return None, _not_found(answers.values())
    (identity,) = identities
    addresses = {printable(each.address) for each in noted}
    instance = ""
    source = "no journal tells who had the ID then"
    if noted:
        source = "a journal had it then" if there else "a journal had it, not known when"
    address = addresses.pop() if len(addresses) == 1 else ""
    for server, client in mounted:
        # The same connection: a client of the same name may have been given the ID since.
        if not noted or (_identity_of_client(client) == identity and client.address == address):
            instance, address = client.instance, client.address
            source = f"server {server} has it mounted now, {source}"
            break
    author = Author(
        client_id, identity.name, instance, *identity[1:], address, source, bool(there and noted)
    )
    return author, ""


def _mounted(
    client_id: ClientId, partition_id: PartitionId, answers: Answers
) -> Iterator[tuple[Address, MountedClient]]:
    for address, answer in answers.items():
        if isinstance(answer, UnavailableError):
            continue
        for client in answer.clients:
            if client.client_id == client_id and any(
                mount.partition_id == partition_id for mount in client.mounts
            ):
                yield address, client


def _identity_of_note(note: ClientNoted) -> _Identity:
    return _Identity(printable(note.name), printable(note.program), printable(note.principal))


def _identity_of_client(client: MountedClient) -> _Identity:
    program = f"{client.program} {client.version}".strip()
    return _Identity(client.name or "", program, client.principal)


def _not_found(answers: Collection[ServerClients | UnavailableError]) -> str:
    silent = sum(isinstance(each, UnavailableError) or not each.is_complete for each in answers)
    unasked = f"; {silent} of {len(answers)} servers do not say who is mounted" if silent else ""
    return f"it is not mounted now, and no journal that could be read has it{unasked}"
