"""One story over every kind of transport: what clients do is the same with and without TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.applications import WRITTEN, Note, Recorder
from tests.client.fake_cluster import until
from tests.server.real_server import Proxy, running_server
from tests.tls_files import TlsFiles
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import ServerConnection
from waltz.errors import ConnectionFailedError, UnavailableError
from waltz.reader.reader_shell import AsyncLogReader
from waltz.system.real_host import real_host
from waltz.system.tcp_network import NOT_CONFIGURED


@pytest.mark.parametrize("transport", ["tcp", "tls"])
@pytest.mark.parametrize("found_by", ["coordinator", "servers"])
def test_the_same_story_over_each_transport(transport: str, found_by: str, tmp_path: Path) -> None:
    """LC-02: opening, appends, locks, the feed, bodies, marks, outcomes, a break, and reading."""
    files = TlsFiles(tmp_path)
    tls = files.peer() if transport == "tls" else NOT_CONFIGURED

    async def story(proxy: Proxy) -> None:
        async with running_server(tmp_path, tls=tls, advertised=proxy.address) as (host, server):
            proxy.target = server.address
            servers = [proxy.address] if found_by == "servers" else []
            options = ClientOptions(servers=servers)
            recorder, follower = Recorder(), Recorder(prefetch=False)
            async with (
                AsyncWaltzClient(host, recorder, options) as client,
                AsyncWaltzClient(host, follower, options) as other,
            ):
                assert [await client.append(0, b"%d" % n) for n in range(5)] == [*range(5)]
                proxy.cut()
                notes = [Note(f"note {n}", lock=1) for n in range(3)]
                for note in notes:
                    await client.submit(note)
                await client.flush()
                assert all(note.story[-2:] == WRITTEN[1:] for note in notes)
                asked = [note.request_id for note in notes if note.request_id is not None]
                assert {await client.outcome(each) for each in asked} == {5, 6, 7}
                assert await other.get_high_water_mark(0) == 7
                await until(lambda: follower.applied_in() == [*range(8)])
                assert follower.data == recorder.data
                assert client.cluster_key == other.cluster_key
            async with AsyncLogReader(host, servers=servers) as reader:
                runs = [list(columns.data) async for columns in reader.read(0, 0, 8)]
                assert [data for run in runs for data in run] == follower.data
            if transport == "tls":
                stranger = real_host(None, TlsFiles(tmp_path).peer())
                with pytest.raises((ConnectionFailedError, UnavailableError)):
                    await ServerConnection.open(stranger, server.address)

    async def main() -> None:
        proxy = Proxy()
        await proxy.start()
        try:
            await story(proxy)
        finally:
            await proxy.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))
