"""HTTP for scrapers and probes, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import logging
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from waltz.errors import ConfigurationError
from waltz.peer_log import PEER_LINES_MAX
from waltz.system import http as http_module
from waltz.system.http import (
    HTTP_CONNECTIONS_MAX,
    HTTP_HEAD_BYTES_MAX,
    PROBES,
    Answer,
    HttpBounds,
    HttpServer,
    prefers_json,
)
from waltz.types import Address

LOOPBACK = Address("127.0.0.1", 0)
PROMETHEUS = "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def run(main: Callable[[HttpServer], Awaitable[None]], bounds: HttpBounds = PROBES) -> None:
    async def serve() -> None:
        server = HttpServer(
            {
                "/good": lambda: Answer(200, "text/plain; charset=utf-8", "grün".encode()),
                "/bad": lambda: Answer(503, "application/json", b"{}"),
            },
            bounds,
        )
        await server.start(LOOPBACK)
        try:
            await main(server)
        finally:
            await server.stop()

    asyncio.run(serve())


def ask(address: Address, path: str, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    connection.request(method, path)
    return connection.getresponse()


async def what_comes(reader: asyncio.StreamReader) -> bytes:
    """Return all that arrives until the connection ends, in whatever way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_a_route_answers_what_its_function_says() -> None:
    """MT-46, MT-49."""

    async def main(server: HttpServer) -> None:
        good = await asyncio.to_thread(ask, server.address, "/good")
        assert (good.status, good.read().decode()) == (200, "grün")
        assert good.headers["content-type"] == "text/plain; charset=utf-8"
        assert good.headers["cache-control"] == "no-store"
        assert good.headers["server"] is None
        bad = await asyncio.to_thread(ask, server.address, "/bad?pretty=true")
        assert (bad.status, bad.read()) == (503, b"{}")

    run(main)


def test_other_paths_and_methods_are_refused() -> None:
    async def main(server: HttpServer) -> None:
        assert (await asyncio.to_thread(ask, server.address, "/etc/passwd")).status == 404
        assert (await asyncio.to_thread(ask, server.address, "/good", "POST")).status == 405

    run(main)


def test_a_port_in_use_is_named() -> None:
    async def main(server: HttpServer) -> None:
        second = HttpServer({})
        with pytest.raises(ConfigurationError, match=f"HTTP port {server.address.port} .* in use"):
            await second.start(server.address)
        await second.stop()

    run(main)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigurationError, match=f"cannot serve HTTP on {host}:1"):
            await HttpServer({}).start(Address(host, 1))

    asyncio.run(main())


def test_signals_stay_with_the_process() -> None:
    handler = signal.getsignal(signal.SIGTERM)

    async def main(server: HttpServer) -> None:
        assert (await asyncio.to_thread(ask, server.address, "/good")).status == 200
        assert signal.getsignal(signal.SIGTERM) == handler

    run(main)
    assert signal.getsignal(signal.SIGTERM) == handler


WHOLE = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = b"GET /good HTTP/1.1\r\nhost: x"


@pytest.mark.parametrize("sent", [b"", HALF])
def test_connections_that_ask_nothing_give_way_to_who_asks(sent: bytes) -> None:
    async def main(server: HttpServer) -> None:
        opened = []
        for _ in range(HTTP_CONNECTIONS_MAX):
            opened.append(await asyncio.open_connection(*server.address))
            opened[-1][1].write(sent)
            await opened[-1][1].drain()
        for _ in range(2):
            response = await asyncio.to_thread(ask, server.address, "/good")
            assert response.status == 200
        assert await what_comes(opened[0][0]) == b"", "it had waited longest"
        opened[-1][1].write(WHOLE[len(sent) :])
        assert (await opened[-1][0].readline()).startswith(b"HTTP/1.1 200"), "it is left alone"
        for _, writer in opened:
            writer.close()

    run(main)


def test_a_request_that_never_ends_is_ended() -> None:
    """Whatever comes of it meanwhile: the time is that of the whole request."""

    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(HALF)
        ending = asyncio.create_task(what_comes(reader))
        while not ending.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert await ending == b""
        writer.close()

    run(main, HttpBounds(request_seconds_max=0.2))


def test_a_connection_that_waits_is_ended_in_time_and_used_again_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "HTTP_IDLE_SECONDS_MAX", 1.0)

    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        for _ in range(2):
            writer.write(WHOLE)
            while (await reader.readline()).strip():
                pass
            assert (await reader.readexactly(len("grün".encode()))).decode() == "grün"
        assert await what_comes(reader) == b""
        writer.close()

    run(main)


def test_a_request_behind_another_one_may_come_in_pieces() -> None:
    """A piece of it need not begin as a request does."""

    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(WHOLE + WHOLE[:-4])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil("grün".encode())
        writer.write(WHOLE[-4:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    run(main)


def test_a_request_behind_another_one_has_the_time_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "HTTP_IDLE_SECONDS_MAX", 3600.0)

    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(WHOLE + HALF)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await what_comes(reader)
        writer.close()

    run(main, HttpBounds(request_seconds_max=0.2))


CHUNKED_POST = b"POST /good HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED_POST + b"zz\r\n",),
        (CHUNKED_POST, b"zz\r\n"),
        (CHUNKED_POST + b"1\r\nx\r\n", b"\xff\r\n"),
        (b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /good HTTP/9\r\n\r\n"),
        (b"GET /good HTTP/1.1\r\nhost x\r\n\r\n",),
        (b"GET /good HTTP/1.1\r\ncontent-length: -1\r\n\r\n",),
    ],
)
def test_requests_that_cannot_be_read_cost_a_bounded_number_of_log_lines(
    pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(server: HttpServer) -> None:
        for _ in range(2 * PEER_LINES_MAX):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(pieces[0])
            answered = b""
            if len(pieces) > 1:
                answered = await reader.readuntil(b"\r\n\r\n")
                writer.write(pieces[1])
            heard = answered + await what_comes(reader)
            assert heard.count(b"HTTP/1.1 ") <= len(pieces)
            writer.close()

    run(main)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not [each for each in caplog.records if each.exc_info]
    assert len(caplog.records) <= PEER_LINES_MAX


def test_a_body_with_two_lengths_is_the_last_thing_that_is_read() -> None:
    """RFC 9112, 6.1: else a proxy and this side could see different requests in it."""

    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        lengths = b"content-length: 100\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        writer.write(WHOLE[:-2] + lengths + WHOLE)
        assert (await what_comes(reader)).count(b"HTTP/1.1") == 1
        writer.close()

    run(main)


def test_a_head_beyond_the_bound_is_refused() -> None:
    async def main(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /good HTTP/1.1\r\nx: " + b"y" * (2 * HTTP_HEAD_BYTES_MAX))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()

    run(main)


def test_the_port_is_free_once_it_is_stopped() -> None:
    async def main() -> None:
        server = HttpServer({})
        await server.start(LOOPBACK)
        await server.stop()
        await server.stop()
        with socket.socket() as probe:
            probe.bind(tuple(server.address))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        (None, True),  # the original's tools
        ("*/*", False),  # curl, wget
        ("application/json", True),
        ("Application/JSON;q=0.9, */*;q=0.5", True),
        ("application/json, text/plain, */*", True),
        ("text/plain, application/json;q=0.5", False),
        ("application/json;q=0", False),
        ("application/json;q=none, */*", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", False),
        (
            "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            False,
        ),
        ("", False),
    ],
)
def test_json_is_for_those_who_ask_for_it_or_say_nothing(accept: str | None, is_json: bool) -> None:
    assert prefers_json(accept) is is_json
