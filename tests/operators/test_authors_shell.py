"""The clients of all servers, asked once for many transactions."""

from __future__ import annotations

from waltz.errors import UnavailableError
from waltz.operators.authors_shell import MountedClients
from waltz.operators.client_questions_shell import ClientMount, MountedClient, ServerClients
from waltz.types import Address, ClientId, Generation, PartitionId

P0, P1 = PartitionId(0), PartitionId(1)
SERVER, OTHER = Address("v1", 1), Address("v2", 1)


def client(client_id: int, name: str, *partitions: PartitionId) -> MountedClient:
    mounts = tuple(ClientMount(each, None, None, None, None, None, False) for each in partitions)
    return MountedClient(
        1, ClientId(client_id), name, "orders-7", "app.py", "0.1.0", False, "CN=orders",
        "h:9", 5, True, True, 1.0, 0.1, mounts, 0,
    )  # fmt: skip


def test_each_client_is_found_among_the_others_as_often_as_it_is_asked_for() -> None:
    found = (client(7, "orders", P0), client(8, "refunds", P0, P1))
    mounted = MountedClients(
        {
            SERVER: ServerClients(0.0, {P0: Generation(1)}, {}, found, {}, True),
            OTHER: UnavailableError("silent"),
        }
    )
    for _ in range(2):
        for number, name in ((7, "orders"), (8, "refunds")):
            author, trouble = mounted.author(ClientId(number), P0, [])
            assert author is not None
            assert (author.name, author.is_recorded, trouble) == (name, False, "")
            assert "no journal tells who had the ID then" in author.source
        author, trouble = mounted.author(ClientId(7), P1, [])
        assert author is None
        assert trouble.endswith("1 of 2 servers do not say who is mounted")
