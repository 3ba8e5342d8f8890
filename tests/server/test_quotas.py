"""Quotas at a server on real sockets: who is held up, who is not, and that nobody gets an error."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, flush, mount
from tests.server.test_enforcement_shell import VERSIONS, Peer, Setting, mark, play
from tests.shares import one_in
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import PermissionDeniedError
from waltz.limits import READ_BYTES_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.server.server_shell import Server
from waltz.wire.client_protocol import FlushResponse

POLICY = """
version: 7
mode: deny
default: deny
roles:
  all: {verbs: [append, read], partitions: 3}
  slow: {verbs: [append, read], partitions: 3, quota: {append_bytes: 256KiB/s}}
  few: {verbs: [append, read], partitions: 3, quota: {appends: 10/s, connections: 2}}
  reading: {verbs: [append, read], partitions: 3, quota: {read_bytes: 1MiB/s}}
grants:
  "spiffe://tests/writer": [all]
  "spiffe://tests/slow": [slow]
  "spiffe://tests/few": [few]
  "spiffe://tests/reader": [reading]
"""
KIB = 1024


def throttled(server: Server) -> dict[str, float]:
    return {name: seconds for (name,), seconds in server.state().throttled}


@pytest.mark.parametrize("version", one_in(3, VERSIONS))
def test_a_flood_is_admitted_at_the_rate_and_others_are_not_held_up(
    tmp_path: Path, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        slow, writer = await setting.peer("slow", version), await setting.peer("writer", version)
        await slow.mount(client=7)
        await writer.mount(client=8)
        began = time.monotonic()
        count, size = 24, 64 * KIB
        for number in range(count):
            slow.say(append(number, data=bytes(size)))
        slow.say(flush(count))
        for number in range(10):
            writer.say(append(number, client=8))
        writer.say(flush(10, client=8))
        assert isinstance(await writer.hear(FlushResponse), FlushResponse)
        while (found := mark(setting.server)) is None or found < count + 10 - 1:
            admitted = (0 if found is None else max(0, found - 9)) * size
            allowed = 256 * KIB * (2.0 + time.monotonic() - began)
            assert admitted <= max(allowed, READ_BYTES_MAX + size)
            await asyncio.sleep(0.01)
        assert isinstance(await slow.hear(FlushResponse), FlushResponse)
        assert throttled(setting.server).keys() == {"spiffe://tests/slow"}
        assert setting.denials() == {}

    play(tmp_path, scene, POLICY)


def test_all_connections_of_a_principal_share_its_bucket(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        peers = [await setting.peer("few", version) for version in (4, 5)]
        began = time.monotonic()
        for number, peer in enumerate(peers):
            await peer.mount(client=7 + number)
            for sequence in range(15):
                peer.say(append(sequence, client=7 + number))
            peer.say(flush(15, client=7 + number))
        for peer in peers:
            await peer.hear(FlushResponse)
        assert mark(setting.server) == 29
        assert time.monotonic() - began >= (30 - 20) / 10
        assert throttled(setting.server)["spiffe://tests/few"] > 0

    play(tmp_path, scene, POLICY)


@pytest.mark.parametrize("version", one_in(2, [4, 5]))
def test_a_client_that_is_held_up_for_longer_than_its_heartbeats_wait_keeps_its_connection(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With answers to its heartbeats alone a client of version 5 would take its server for dead."""
    caplog.set_level(logging.INFO, "waltz")

    async def scene(setting: Setting) -> None:
        options = ClientOptions(
            protocol_version_max=version,
            partitions=[PARTITION],
            heartbeat_interval_seconds=0.5,
            heartbeat_timeout_seconds=2.0,
        )
        application = Recorder()
        async with AsyncWaltzClient(setting.someone("slow"), application, options) as client:
            await client.append(PARTITION, b"")
            connected = setting.server.state().connections
            appends = [client.append(PARTITION, bytes(512 * KIB)) for _ in range(4)]
            await asyncio.gather(*appends)
            assert setting.server.state().connections == connected
        assert throttled(setting.server)["spiffe://tests/slow"] > 3
        gone = ("client_broken", "client_restored", "client_cut_off", "connection_broken")
        lines = [each.getMessage() for each in caplog.records]
        assert not [each for each in lines if each.startswith(gone)]

    play(tmp_path, scene, POLICY)


def test_a_call_that_is_over_its_quota_is_taken_apart_and_each_part_is_committed_or_denied(
    tmp_path: Path,
) -> None:
    async def scene(setting: Setting) -> None:
        data = [b"%d" % number + bytes(96 * KIB) for number in range(8)]
        application = Recorder()
        options = ClientOptions(partitions=[PARTITION])
        async with AsyncWaltzClient(setting.someone("slow"), application, options) as client:
            with pytest.raises(PermissionDeniedError, match="spiffe://tests/slow"):
                await client.append_many(PARTITION, data, headers=[9] * len(data))
            found = await client.append_many(PARTITION, data)
            assert found.tolist() == list(range(8))
            await until(lambda: application.data == data)
        assert throttled(setting.server)["spiffe://tests/slow"] > 0

    limited = "partitions: 3, headers: 0, quota: {append_bytes"
    play(tmp_path, scene, POLICY.replace("partitions: 3, quota: {append_bytes", limited))


@pytest.mark.parametrize("version", [4, 5])
def test_a_reader_is_sent_no_more_than_its_rate(tmp_path: Path, version: int) -> None:
    async def scene(setting: Setting) -> None:
        writer = await setting.peer("writer", 5)
        await writer.mount(client=8)
        count, size = 40, 128 * KIB
        for number in range(count):
            writer.say(append(number, client=8, data=bytes(size)))
        await until(lambda: mark(setting.server) == count - 1)
        options = ClientOptions(protocol_version_max=version, partitions=[PARTITION])
        application = Recorder()
        began = time.monotonic()
        async with AsyncWaltzClient(setting.someone("reader"), application, options):
            await until(lambda: len(application.data) == count)
        seconds = time.monotonic() - began
        ahead = 2 * WRITE_BUFFER_BYTES_HIGH  # what one step of the partition sends comes on top
        assert count * size <= 1024 * KIB * (2.0 + seconds) + ahead
        assert throttled(setting.server)["spiffe://tests/reader"] > 0

    play(tmp_path, scene, POLICY)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connection_too_many_is_ended_with_the_reason_and_others_stay(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        peers = [await setting.peer("few", version) for _ in range(2)]
        third = await setting.peer("few", version)
        reason = "quota: 2 connections of spiffe://tests/few"
        assert await third.is_ended() == (reason if version == 5 else "")
        assert [each for each in caplog.records if each.getMessage().endswith(f"reason={reason}")]
        assert (await setting.peer("writer", version)).connection is not None
        for number, peer in enumerate(peers):
            await peer.mount(client=7 + number)
        peers[0].connection.close()
        await until(lambda: setting.server.state().connections == 2)
        await (await setting.peer("few", version)).mount(client=9)

    play(tmp_path, scene, POLICY)


def test_what_a_connection_sends_that_is_one_too_many_is_not_served(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        others = [await setting.peer("few", 4) for _ in range(2)]
        third = Peer(await setting.someone("few").network.connect(setting.server.address), 4)
        await third.open()
        third.say(mount(client=9))
        await third.is_ended()
        assert setting.server.state().partitions[PARTITION].mounts == 0
        assert len(others) == 2

    play(tmp_path, scene, POLICY)


def test_a_quota_that_is_raised_lets_those_go_who_wait(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        few = await setting.peer("few", 5)
        await few.mount()
        for number in range(100_000, 120_000):
            few.say(append(number, data=b""))
        few.say(flush(120_000))
        await until(lambda: throttled(setting.server).get("spiffe://tests/few", 0.0) > 0)
        setting.policy.write_text(POLICY.replace("quota: {appends: 10/s, ", "quota: {"))
        await few.hear(FlushResponse)
        assert mark(setting.server) == 19_999

    play(tmp_path, scene, POLICY)


def test_a_policy_that_observes_holds_nobody_up(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        for number in range(4):
            peer = await setting.peer("few", 5)
            await peer.mount(client=7 + number)
            for sequence in range(100):
                peer.say(append(sequence, client=7 + number))
            peer.say(flush(100, client=7 + number))
            await peer.hear(FlushResponse)
        assert mark(setting.server) == 399
        assert throttled(setting.server) == {}

    play(tmp_path, scene, POLICY.replace("mode: deny", "mode: observe"))


def test_a_server_stops_at_once_while_connections_are_held_up(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        few = await setting.peer("few", 5)
        await few.mount()
        for number in range(10_000):
            few.say(append(number, data=b""))
        await until(lambda: throttled(setting.server).get("spiffe://tests/few", 0.0) > 0)
        await asyncio.wait_for(setting.server.stop(), 30.0)

    play(tmp_path, scene, POLICY)
