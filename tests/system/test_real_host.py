"""The doors of one process."""

from __future__ import annotations

import asyncio

import pytest

from waltz.errors import LocalProtocolError
from waltz.host import Host, Node
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.real_host import real_host
from waltz.types import Address


def test_a_process_with_a_coordinator_can_be_set_up_without_reaching_it() -> None:
    host = real_host(Address("127.0.0.1", 1))
    assert isinstance(host, Host)
    assert isinstance(host.coordinator, EmbeddedCoordinator)
    asyncio.run(host.coordinator.close())


def test_a_process_without_a_coordinator_is_told_so() -> None:
    async def story() -> None:
        coordinator = real_host(None).coordinator
        for call in (
            coordinator.read("/a"),
            coordinator.children("/a"),
            coordinator.create("/a", None),
            coordinator.write("/a", b"", version=0),
            coordinator.delete("/a"),
            coordinator.changed("/a", Node(None, 0, 0)),
        ):
            with pytest.raises(LocalProtocolError, match="node /a"):
                await call
        await coordinator.close()

    asyncio.run(story())
