"""`waltz admin server`: preferred partitions (TL-31, TL-32)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import wait_until
from waltz.cli.admin_server import change_preference
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.trial_directory import choose_ports
from waltz.cluster.store_params import ClusterParams
from waltz.errors import ConfigurationError
from waltz.host import Connection, Coordinator, Host, Node
from waltz.operators.questions_shell import NOBODY
from waltz.system.real_host import real_host
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, PartitionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
)
from waltz.wire.handshake import Link

pytestmark = pytest.mark.processes


def test_a_preferred_partition_moves_and_moves_back(operated: OperatedCluster) -> None:
    """TL-31, TL-32, SV-25, CM-30"""
    operated.start_server("v2")
    second = operated.servers["v2"]

    def owns(*numbers: str) -> bool:
        found = operated.done("cluster", "list", "--json").json
        ids = {each["address"]: str(each["server_id"]) for each in found["servers"]}
        assignment = found["assignment"]
        owned = assignment["servers"].get(ids.get(second), {})
        return assignment["consistent"] and list(owned) == list(numbers)

    wait_until(lambda: owns("0") or owns("1"), "the second server gets no share")
    said = operated.done("admin server", "add-preferred-partition", "-s", second, "-p", "0-1")
    assert said.out == f"server {second} prefers partitions 0-1\n"
    wait_until(lambda: owns("0", "1"), "the preferred partitions do not move")
    operated.wait_until_verified("the cluster is not well after the move")
    gone = operated.done(
        "admin server", "remove-preferred-partition", "-s", second, "-p", "0-1", "--json"
    )
    assert gone.json == {"server": second, "removed": [0, 1]}
    wait_until(lambda: owns("0") or owns("1"), "the shares are not even again")
    operated.end("v2")


def test_what_a_server_cannot_prefer_is_refused(operated: OperatedCluster) -> None:
    """TL-31"""
    where = ("-s", operated.servers["v1"])
    beyond = operated.tool("admin server", "add-preferred-partition", *where, "-p", "2")
    assert (beyond.code, "there is no partition 2" in beyond.err) == (1, True)
    nowhere = ("-s", "127.0.0.1:1", "-p", "0")
    nobody = operated.tool("admin server", "add-preferred-partition", *nowhere)
    assert (nobody.code, "no connection to 127.0.0.1:1" in nobody.err) == (1, True)
    storage = operated.storages["s1"].address
    wrong = operated.tool("admin server", "add-preferred-partition", "-s", storage, "-p", "0")
    assert wrong.code == 1
    assert "a storage node's data port answers there; expected a Waltz server" in wrong.err


class Place:
    """A cluster of two partitions with one server, which takes no note of what it is to prefer: it
    has not heard whether its coordinator has stored that."""

    def __init__(self) -> None:
        (port,) = choose_ports("127.0.0.1", 0, 1)
        self.server = Address("127.0.0.1", port)

    async def read(self, path: str) -> Node:
        return Node(ClusterParams("unsure", 2).encode(), 0, 0)

    async def answer(self, connection: Connection) -> None:
        link = Link(CLIENT_CODEC, "a server")
        connection.write(link.hello())
        while data := await connection.read():
            for message in link.receive(data):
                assert isinstance(message, AddPreferredPartitionRequest)
                connection.write(link.encode(AddPreferredPartitionResponse(NOBODY, False)))

    def run(self, work: Callable[[Host, str], Awaitable[bool]]) -> bool:
        async def main() -> bool:
            listener = await RealNetwork().listen(self.server, self.answer)
            try:
                return await work(
                    replace(real_host(None), coordinator=cast(Coordinator, self)), "/waltz"
                )
            finally:
                await listener.close()

        return asyncio.run(main())


def test_a_change_that_a_server_does_not_confirm_may_be_stored() -> None:
    """Its coordinator may have stored it, and the answer was lost."""
    place = Place()
    with pytest.raises(ConfigurationError, match="may or may not be stored") as caught:
        change_preference(
            cast(ClusterPlace, place), place.server, (PartitionId(1),), add=True, as_json=False
        )
    assert "could not" not in str(caught.value)
