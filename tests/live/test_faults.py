"""The proxy does what it is told, and what the product makes of it, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.live.faults import BOTH, Act, Deed, Proxy, Side
from tests.server.real_server import running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.host import Host
from waltz.server.server_shell import Server
from waltz.types import Address

REQUESTS = (Side.REQUESTS,)
ANSWERS = (Side.ANSWERS,)


class Echo:
    """A server that sends back what comes, behind a proxy."""

    def __init__(self) -> None:
        self.proxy = Proxy()
        self.heard = [bytearray()]
        self.ended = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.proxy.target = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])
        await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self.proxy.stop()
        self._server.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.proxy.address)
        await self.say(reader, writer, b"hello")
        return reader, writer

    async def say(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        writer.write(data)
        assert await reader.readexactly(len(data)) == data

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.heard.append(heard)
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                heard += data
                writer.write(data)
        self.ended += 1
        # Half of it may be closed: what is still to be said can be said.


def act(deed: Deed, sides: tuple[Side, ...] = BOTH, **more: float | None) -> Act:
    return Act(deed, sides, **more)  # type: ignore[arg-type]


def play(scene: object) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Echo() as echo:
            await scene(echo)  # type: ignore[operator]

    asyncio.run(main())


def test_bytes_pass_and_what_is_held_comes_later() -> None:
    async def scene(echo: Echo) -> None:
        reader, writer = await echo.open()
        holding = asyncio.create_task(echo.proxy.perform(act(Deed.DELAY, REQUESTS, seconds=0.2)))
        await asyncio.sleep(0)
        writer.write(b"later")
        assert bytes(echo.heard[-1]) == b"hello"
        assert await reader.readexactly(5) == b"later"
        assert holding.done()

    play(scene)


def test_a_trickle_loses_nothing() -> None:
    async def scene(echo: Echo) -> None:
        reader, writer = await echo.open()
        trickling = asyncio.create_task(echo.proxy.perform(act(Deed.TRICKLE, seconds=0.1)))
        await asyncio.sleep(0)
        await echo.say(reader, writer, bytes(range(256)) * 40)
        await trickling

    play(scene)


@pytest.mark.parametrize("deed", [Deed.CUT, Deed.SWALLOW])
def test_a_connection_is_reset(deed: Deed) -> None:
    async def scene(echo: Echo) -> None:
        reader, _ = await echo.open()
        await echo.proxy.perform(act(deed, seconds=0.05))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await until(lambda: echo.ended == 1)
        await echo.open()

    play(scene)


def test_what_is_swallowed_is_nowhere_also_on_new_connections() -> None:
    async def scene(echo: Echo) -> None:
        _, writer = await echo.open()
        swallowing = asyncio.create_task(echo.proxy.perform(act(Deed.SWALLOW, seconds=0.3)))
        await asyncio.sleep(0)
        writer.write(b"lost")
        _, later = await asyncio.open_connection(*echo.proxy.address)
        later.write(b"lost")
        await swallowing
        assert {bytes(each) for each in echo.heard} <= {b"", b"hello"}
        assert echo.proxy.done["SWALLOW"] == 2

    play(scene)


def test_a_frame_ends_in_its_middle() -> None:
    async def scene(echo: Echo) -> None:
        reader, writer = await echo.open()
        await echo.proxy.perform(act(Deed.CUT_SHORT, REQUESTS, share=0.5))
        writer.write(bytes(1000))
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1000):
                pass
        await until(lambda: echo.ended == 1)
        assert len(echo.heard[-1]) < 1000

    play(scene)


def test_one_way_ends_and_the_other_goes_on() -> None:
    async def scene(echo: Echo) -> None:
        reader, writer = await echo.open()
        await echo.proxy.perform(act(Deed.HALF_CLOSE, ANSWERS))
        assert await reader.read() == b""
        writer.write(b"still heard")
        await until(lambda: bytes(echo.heard[-1]) == b"hellostill heard")
        _, other = await echo.open()
        await echo.proxy.perform(act(Deed.HALF_CLOSE, REQUESTS, which=0.99))
        await until(lambda: echo.ended == 1)
        other.write(b"lost")

    play(scene)


def test_what_was_carried_is_sent_again() -> None:
    async def scene(echo: Echo) -> None:
        reader, writer = await echo.open()
        await echo.say(reader, writer, b" world")
        await echo.proxy.perform(act(Deed.REPLAY, share=1.0))
        assert bytes(echo.heard[-1]) == b"hello world"
        await echo.proxy.perform(act(Deed.REPLAY, share=0.5, which=0.0))
        assert bytes(echo.heard[-1]).startswith(b"he")
        assert echo.proxy.done["REPLAY"] == 2

    play(scene)


@contextlib.asynccontextmanager
async def client_behind(
    directory: Path, proxy: Proxy
) -> AsyncIterator[tuple[Host, Server, Recorder, AsyncWaltzClient]]:
    recorder = Recorder()
    async with running_server(directory, advertised=proxy.address) as (host, server):
        proxy.target = server.address
        await until(lambda: any(p.is_open for p in server.state().partitions))
        options = ClientOptions(servers=[proxy.address])
        async with AsyncWaltzClient(host, recorder, options) as client:
            yield host, server, recorder, client


@pytest.mark.long
@pytest.mark.parametrize("is_cut", [False, True])
def test_what_clients_have_sent_writes_nothing_when_it_is_sent_again(
    tmp_path: Path, is_cut: bool
) -> None:
    """LC-54, CS-24: whole connections, and restored ones, whether their client is there or not."""
    count = 20

    async def main() -> None:
        proxy = Proxy()
        await proxy.start()
        async with asyncio.timeout(60), client_behind(tmp_path, proxy) as found:
            _, server, recorder, client = found
            for number in range(count):
                assert await client.append(0, b"%d" % number) == number
                if is_cut and number % 5 == 4:
                    proxy.cut()
            for _ in range(3):
                await proxy.perform(act(Deed.REPLAY))
            assert await client.append(0, b"last") == count
            await client.close()
            await until(lambda: server.state().connections == 0)
            await proxy.perform(act(Deed.REPLAY, seconds=0.5))
            assert server.state().partitions[0].high_water_mark == count
            assert recorder.applied_in(0) == list(range(count + 1))
            assert proxy.done["REPLAY"] > 10
        await proxy.stop()

    asyncio.run(main())
