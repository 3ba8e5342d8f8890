"""What a server is asked, against a server of simulated machines."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.server.test_server_shell import PARTITIONS, SERVER, STORAGES, World, play
from waltz.client.applying.callbacks import NoCallbacks
from waltz.errors import NotFoundError, UnavailableError
from waltz.host import Host
from waltz.operators.questions_shell import (
    ReportAnswers,
    ServerReport,
    ask_coordinator,
    ask_reports,
    ask_server,
    ask_servers,
    prefer_partitions,
)
from waltz.store.replica_reports_shell import REPLICA_LOOK_SECONDS_MIN
from waltz.testing import InMemoryCluster
from waltz.types import Address, PartitionId, ServersAddress
from waltz.wire.report_protocol import PartitionReport, Standing


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
        assert "waits for votes of a majority" in problem
        assert "storage-0:7000 is not connected" in problem

    play(scene, seeds=1)


def test_nobody_there_is_an_error() -> None:
    async def scene(_: World, host: Host) -> None:
        with pytest.raises(UnavailableError):
            await ask_server(host, Address("server", 1))
        with pytest.raises(UnavailableError):
            await ask_server(host, Address(STORAGES[0], 7000))

    play(scene, seeds=1)


def test_all_servers_are_asked_and_who_does_not_answer_is_named() -> None:
    """CI-31: one that is not there does not fail the others."""
    gone = Address("server", 1)

    async def scene(_: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        answers = await ask_servers(host, [SERVER, gone])
        assert list(answers) == [SERVER, gone]
        report, error = answers[SERVER], answers[gone]
        assert isinstance(report, ServerReport)
        assert report.assigned == frozenset(PARTITIONS)
        assert report.storages == {f"{name}:7000": True for name in STORAGES}
        assert isinstance(error, UnavailableError)
        assert "server:1" in str(error)

    play(scene, seeds=1)


def test_a_server_is_told_what_to_prefer() -> None:
    """CI-31."""

    async def scene(world: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        assert await prefer_partitions(host, SERVER, add=PARTITIONS[:1])
        assert await prefer_partitions(host, SERVER, remove=PARTITIONS[:1])
        assert not await prefer_partitions(host, SERVER, add=[PartitionId(999)])
        with pytest.raises(UnavailableError):
            await prefer_partitions(host, Address("server", 1), add=PARTITIONS[:1])

    play(scene, seeds=1)


def test_a_client_asks_the_servers_that_it_knows() -> None:
    """CI-31."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(NoCallbacks())
        client.append(0, b"")
        ((address, report),) = client.ask_servers().items()
        assert isinstance(report, ServerReport)
        assert report.partitions == {0: True, 1: True}
        assert report.assigned == {0, 1}
        assert client.prefer_partitions(address, add=[1])
        with pytest.raises(NotFoundError):
            client.prefer_partitions(address, add=[2])


async def asked_until_current(host: Host, count: int) -> ReportAnswers:
    """What the server says once so many replicas of the first partition are current."""
    while True:
        with contextlib.suppress(UnavailableError):
            found = await ask_reports(host, SERVER, PARTITIONS)
            report = found.reports.get(PARTITIONS[0])
            if report is not None and len(current(report)) == count:
                return found
        await asyncio.sleep(0.1)


def current(report: PartitionReport) -> set[str]:
    return {each.replica_id for each in report.replicas if each.standing == Standing.CURRENT}


def test_replicas_are_asked_and_one_that_is_killed_is_never_called_current_again() -> None:
    """F-5: from the first question on after it died, whatever the coordinator's metadata say."""

    async def scene(world: World, host: Host) -> None:
        well = await asked_until_current(host, 3)
        assert [well.reports[number].writable for number in PARTITIONS] == [1, 1]
        assert well.coordinator_problem is None
        world.sites.kill(world.sites.site(STORAGES[0]))
        for _ in range(20):
            found = await ask_reports(host, SERVER, PARTITIONS)
            for report in found.reports.values():
                assert f"{STORAGES[0]}:7000" not in current(report)
            await asyncio.sleep(0.3)
        (report, _) = (await asked_until_current(host, 2)).reports.values()
        assert report.writable == 1
        world.sites.kill(world.sites.site(STORAGES[1]))
        for _ in range(20):
            found = await ask_reports(host, SERVER, PARTITIONS)
            assert all(each.writable != 1 for each in found.reports.values())
            await asyncio.sleep(0.3)

    play(scene, seeds=5)


def test_nothing_is_told_that_was_said_before_the_question() -> None:
    async def scene(world: World, host: Host) -> None:
        await asked_until_current(host, 3)
        for _ in range(20):
            asked_at = host.clock.now()
            found = await ask_reports(host, SERVER, PARTITIONS)
            seconds = host.clock.now() - asked_at
            for each in found.reports[PARTITIONS[0]].replicas:
                if each.standing == Standing.CURRENT:
                    assert each.age_milliseconds / 1000 <= seconds

    play(scene, seeds=3)


def test_those_who_ask_at_a_time_share_a_look() -> None:
    async def scene(_: World, host: Host) -> None:
        await asked_until_current(host, 3)
        asked_at = host.clock.now()
        await asyncio.gather(*[ask_reports(host, SERVER, PARTITIONS[:1]) for _ in range(100)])
        assert host.clock.now() - asked_at < 100 * REPLICA_LOOK_SECONDS_MIN / 2

    play(scene, seeds=2)


def test_a_server_that_cannot_say_is_not_waited_for() -> None:
    """One of version 4; and a storage node, which is no server."""

    async def scene(_: World, host: Host) -> None:
        with pytest.raises(UnavailableError):
            await ask_reports(host, Address(STORAGES[0], 7000), PARTITIONS)
        with pytest.raises(UnavailableError, match="no server of waltz://server:1"):
            await ask_coordinator(host, ServersAddress((Address("server", 1),)))
        with pytest.raises(UnavailableError, match="does not tell where its coordinator is"):
            await ask_coordinator(host, ServersAddress((SERVER,)))

    play(scene, seeds=1)
