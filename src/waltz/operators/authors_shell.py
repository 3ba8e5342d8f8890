"""Asks servers for their clients, to tell who wrote transactions: one, or many at once.

Owns the question. The conclusion is that of `authors.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from waltz.cluster.cluster_shell import read_membership
from waltz.cluster.paths import ClusterPaths
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.operators.authors import Answers, Author, author_of
from waltz.operators.client_questions_shell import ask_all_clients
from waltz.operators.journals_shell import JournalNotes
from waltz.types import ClientId, PartitionId


class MountedClients:
    """The answers of all servers about the clients that have mounted partitions now."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._about: dict[ClientId, Answers] = {}
        """The same answers without other clients: many transactions have one author."""

    def author(
        self, client_id: ClientId, partition_id: PartitionId, journals: Collection[JournalNotes]
    ) -> tuple[Author | None, str]:
        """Return the client that wrote a transaction; or None, and why nobody can tell."""
        about = self._about.get(client_id)
        if about is None:
            about = self._about[client_id] = {
                address: answer
                if isinstance(answer, UnavailableError)
                else replace(
                    answer,
                    clients=tuple(each for each in answer.clients if each.client_id == client_id),
                )
                for address, answer in self._answers.items()
            }
        return author_of(client_id, partition_id, about, journals)


async def ask_mounted_clients(host: Host, root: str) -> MountedClients:
    """Ask all servers at once. Raises CoordinatorLostError."""
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    addresses = {each.address for each in membership.descriptors.values()}
    return MountedClients(await ask_all_clients(host, sorted(addresses)))
