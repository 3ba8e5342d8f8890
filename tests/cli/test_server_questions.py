"""What a tool asks a server, against a server of simulated machines."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.test_shell import PARTITIONS, SERVER, STORAGES, World, play
from waltz.cli.server_questions import ServerReport, ask_server
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.types import Address


def test_server_that_is_well_is_asked_for_no_more() -> None:
    async def scene(_: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        expected = ServerReport(dict.fromkeys(PARTITIONS, True), {})
        assert await ask_server(host, SERVER) == expected

    play(scene, seeds=1)


def test_server_without_a_quorum_says_which_storage_nodes_it_reaches() -> None:
    """SV-26, SV-27: for each partition that takes no appends there is a reason."""

    async def scene(world: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        for name in STORAGES[:2]:
            world.sites.kill(world.sites.site(name))
        while all((report := await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.5)
        assert report.storages == {f"{name}:7000": name == STORAGES[2] for name in STORAGES}
        problem = report.problem(PARTITIONS[0])
        assert problem is not None
        assert "reaches 1 of 3 storage nodes, not storage-0:7000, storage-1:7000" in problem

    play(scene, seeds=1)


def test_nobody_there_is_an_error() -> None:
    async def scene(_: World, host: Host) -> None:
        with pytest.raises(UnavailableError):
            await ask_server(host, Address("server", 1))
        with pytest.raises(UnavailableError):
            await ask_server(host, Address(STORAGES[0], 7000))

    play(scene, seeds=1)
