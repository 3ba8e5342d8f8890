"""Attacks at an HTTP port, with TLS and tokens, and without either; `docs/design/hostile-peers.md`
has the table of them, which a test compares.

The port is the one that every process has: the bounds, the gate and the routes are the product's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.access.attack_tables import rows_of
from tests.http_asking import asked
from tests.shares import one_in
from tests.system.test_tls_transport import client_hello
from tests.tls_files import TlsFiles
from waltz.bearer_tokens import line_of, token_of
from waltz.system import http as http_module
from waltz.system.http import HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX, Answer, HttpServer
from waltz.types import Address, HttpAccess, TlsSettings

FLOOD: Final = 2_000
GIBIBYTE: Final = 1 << 30
SECONDS: Final = 1.0
"""Time of a request and of a handshake in these tests."""

TOKEN, STRANGE = token_of(bytes(32)), token_of(bytes([1]) * 32)
SECRET: Final = "waltz_server_secret 1"
SHOWN: Final = f"authorization: Bearer {TOKEN}\r\n"


class Ground:
    """A port under attack; `files` None: it is plain, and asks for no tokens."""

    def __init__(self, server: HttpServer, files: TlsFiles | None) -> None:
        self.address = server.address
        self.files = files

    @property
    def asks(self) -> bool:
        return self.files is not None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = None
        if self.files is not None:
            context = ssl.create_default_context(cafile=self.files.authorities)
        return await asyncio.open_connection(*self.address, ssl=context)

    async def said(self, *pieces: bytes, ends: bool = False) -> bytes:
        """Send `pieces`, and return all that comes until the connection ends."""
        reader, writer = await self.open()
        heard = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if ends and writer.can_write_eof():
                writer.write_eof()
            while data := await asyncio.wait_for(reader.read(65536), 30.0):
                heard += data
        writer.close()
        return heard

    async def scrape(self) -> None:
        """A scraper with its token is answered."""
        shown = [("authorization", f"Bearer {TOKEN}"), ("accept", "text/plain")]
        authorities = None if self.files is None else self.files.authorities
        answer = await asked(self.address, "/metrics", shown, authorities=authorities)
        assert (answer.status, answer.text) == (200, SECRET)


def statuses(heard: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+) ", heard)]


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join((line, "host: x", *headers, "", "")).encode()


async def strange_tokens(ground: Ground) -> None:
    shown = (
        "authorization: Bearer",
        f"authorization: Bearer {STRANGE}",
        f"authorization: Bearer {TOKEN[:-1]}",
        f"authorization: Bearer {TOKEN} {TOKEN}",
        f"authorization: Bearer\t{TOKEN}x",
        f"proxy-authorization: Bearer {TOKEN}",
        f"x-authorization: Bearer {TOKEN}",
        f"cookie: token={TOKEN}",
        "authorization: " + "x" * 10_000,
    )
    for header in shown:
        heard = await ground.said(request("GET /metrics HTTP/1.1", header, "connection: close"))
        assert statuses(heard) == [401]
        assert SECRET.encode() not in heard


async def roundabout_paths(ground: Ground) -> None:
    paths = (
        *("/live/../metrics", "/live/%2e%2e/metrics", "/health/..%2fmetrics", "//metrics"),
        *("/live%00/metrics", "/live;/metrics", "/live?/metrics", "/metrics#/live", "/%6detrics"),
        *(
            "/metrics/",
            "/METRICS",
            "http://x/metrics",
            "http://x/live/../metrics",
            "*",
            "/\\metrics",
        ),
    )
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "TRACE", "OPTIONS"):
            heard = await ground.said(request(f"{method} {path} HTTP/1.1", "connection: close"))
            assert SECRET.encode() not in heard, path
    for line in (
        "GET /metrics HTTP/1.0",
        "GET /metrics HTTP/0.9",
        "GET /metrics",
        "CONNECT x:1 HTTP/1.1",
    ):
        heard = await ground.said(request(line, "connection: close"), ends=True)
        assert SECRET.encode() not in heard, line


HIDDEN: Final = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = "transfer-encoding: chunked"
CHUNK_SIZES: Final = (b"zz\r\n", b"-1\r\n", b"0_0\r\n\r\n")
"""Sizes of a first chunk that are none."""


async def smuggled_requests(ground: Ground) -> None:
    """A request that one reader sees in the body of another, and a second reader as a request."""
    size = len(HIDDEN)
    smuggled = (
        request("POST /live HTTP/1.1", f"content-length: {size}", CHUNKED) + b"0\r\n\r\n" + HIDDEN,
        request("POST /live HTTP/1.1", CHUNKED, f"content-length: {size}") + b"0\r\n\r\n" + HIDDEN,
        request("POST /live HTTP/1.1", "content-length: 0", f"content-length: {size}") + HIDDEN,
        request("POST /live HTTP/1.1", f"content-length: 0, {size}") + HIDDEN,
        request("POST /live HTTP/1.1", f"content-length: +{size}") + HIDDEN,
        request("POST /live HTTP/1.1", "content-length: -1") + HIDDEN,
        request("POST /live HTTP/1.1", f"content-length : {size}") + HIDDEN,
        request("POST /live HTTP/1.1", "transfer-encoding: xchunked") + b"0\r\n\r\n" + HIDDEN,
        request("POST /live HTTP/1.1", "transfer-encoding: a, chunked") + b"0\r\n\r\n" + HIDDEN,
        request("POST /live HTTP/1.1", "transfer-encoding:\x0bchunked") + b"0\r\n\r\n" + HIDDEN,
        *(request("POST /live HTTP/1.1", CHUNKED) + chunk + HIDDEN for chunk in CHUNK_SIZES),
        b"GET /live HTTP/1.1\r\nhost: x\r\nx: a\r\rb\r\n\r\n" + HIDDEN,
        b"GET /live HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n" + HIDDEN,
    )
    for data in smuggled:
        heard = await ground.said(data, ends=True)
        assert len(statuses(heard)) <= 1, (data, heard)


async def tokens_for_the_next(ground: Ground) -> None:
    """A request on a connection on which another one has shown a token."""
    first = request("GET /metrics HTTP/1.1", SHOWN.strip())
    heard = await ground.said(first + request("GET /metrics HTTP/1.1", "connection: close"))
    assert statuses(heard) == [200, 401]
    folded = b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer\r\n " + TOKEN.encode()
    await ground.said(folded + b"\r\nconnection: close\r\n\r\n")


async def floods_of_headers(ground: Ground) -> None:
    for header in (b"x: y\r\n", b"x: " + b"y" * 8_000 + b"\r\n"):
        piece = header * (HTTP_HEAD_BYTES_MAX // len(header) + 1)
        heard = await ground.said(b"GET /live HTTP/1.1\r\n", *([piece] * 20))
        assert statuses(heard) in ([], [400])
    heard = await ground.said(b"GET /" + b"x" * 1_000_000)
    assert statuses(heard) in ([], [400])


async def endless_bodies(ground: Ground) -> None:
    for path in ("/live", "/metrics"):
        heads = (
            request(f"POST {path} HTTP/1.1", f"content-length: {GIBIBYTE}"),
            request(f"POST {path} HTTP/1.1", f"content-length: {10**30}"),
        )
        for head in heads:
            heard = await ground.said(head, *[b"x" * 65_536] * 64)
            assert not set(statuses(heard)) - {400, 401, 405}
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        heard = await ground.said(request(f"POST {path} HTTP/1.1", CHUNKED), *[chunk] * 64)
        assert not set(statuses(heard)) - {400, 401, 405}


async def slow_requests(ground: Ground) -> None:
    reader, writer = await ground.open()
    ending = asyncio.create_task(heard_until_the_end(reader))
    writer.write(b"GET /metrics HTTP/1.1\r\n")
    while not ending.done():
        writer.write(b"x: y\r\n")
        await asyncio.sleep(SECONDS / 50)
    assert SECRET.encode() not in await ending
    writer.close()


async def heard_until_the_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return await reader.read()
    return b""


async def half_requests(ground: Ground) -> None:
    whole = request("GET /metrics HTTP/1.1", SHOWN.strip())
    for length in range(0, len(whole), 9):
        _, writer = await ground.open()
        writer.write(whole[:length])
        writer.transport.abort()


async def upgrades(ground: Ground) -> None:
    for kind in ("websocket", "h2c"):
        heard = await ground.said(
            request(
                "GET /metrics HTTP/1.1",
                *("connection: upgrade", f"upgrade: {kind}", "sec-websocket-version: 13"),
                *("sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", "http2-settings: AAMAAABk"),
            )
            + HIDDEN,
            ends=True,
        )
        assert 101 not in statuses(heard)
        assert SECRET.encode() not in heard
    heard = await ground.said(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100, ends=True)
    assert not set(statuses(heard)) - {400, 401}


async def flood(ground: Ground) -> None:
    await flooded(ground, b"")


async def half_handshakes(ground: Ground) -> None:
    await flooded(ground, client_hello())


async def flooded(ground: Ground, said: bytes) -> None:
    writers: list[asyncio.StreamWriter] = []
    for number in range(FLOOD):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*ground.address)
            writer.write(said)
            writers.append(writer)
        if number % (FLOOD // 4) == 0:
            await ground.scrape()
    await ground.scrape()
    for writer in writers:
        writer.transport.abort()


async def garbage(ground: Ground) -> None:
    for data in (b"\x00" * 70_000, b"\xff" * 1_000, b"\r\n" * 10_000, b"GET", b"H\x00\x00\x00"):
        heard = await ground.said(data, ends=True)
        assert not set(statuses(heard)) - {400}


@dataclass(frozen=True)
class Attack:
    """`what` and `outcome` are the cells of the page."""

    what: str
    outcome: str
    tried: Callable[[Ground], Awaitable[None]]
    in_plain: bool = True
    """Whether it is tried at a port without TLS and tokens, too, where it comes to the same."""


ATTACKS: Final = (
    Attack("shows another token, part of one, or one elsewhere", "401", strange_tokens, False),
    Attack(
        "goes by `/live` and other ways to `/metrics`",
        "gets nothing of it",
        roundabout_paths,
        False,
    ),
    Attack(
        "hides a request in the body or the headers of another",
        "gets one answer, and is cut off",
        smuggled_requests,
        False,
    ),
    Attack("asks on a connection on which a token was shown", "401", tokens_for_the_next, False),
    Attack("sends headers without end", "is cut off after 16 KiB", floods_of_headers),
    Attack("announces and sends bodies without end", "is refused, and cut off", endless_bodies),
    Attack("sends a request line by line, without end", "is cut off after 5 s", slow_requests),
    Attack("sends parts of requests and goes", "nothing", half_requests),
    Attack("asks for WebSocket or HTTP/2", "is answered in HTTP/1.1, or refused", upgrades, False),
    Attack("sends what is no HTTP", "400, or is cut off", garbage),
    Attack("opens 2,000 connections that say nothing", "scrapers are answered", flood),
    Attack("begins 2,000 TLS handshakes", "scrapers are answered", half_handshakes),
)


def play(attack: Attack, access: HttpAccess, files: TlsFiles | None) -> None:
    async def main() -> None:
        routes = {
            "/live": lambda: Answer(200, "text/plain", b"live\n"),
            "/metrics": lambda: Answer(200, "text/plain", SECRET.encode()),
        }
        bounds = http_module.HttpBounds(HTTP_CONNECTIONS_MAX, SECONDS)
        server = HttpServer(routes, bounds, access)
        await server.start(Address("127.0.0.1", 0))
        try:
            ground = Ground(server, files)
            await attack.tried(ground)
            await ground.scrape()
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))


@pytest.mark.parametrize(
    "attack", one_in(3, ATTACKS), ids=[each.tried.__name__ for each in ATTACKS]
)
def test_nobody_without_a_token_gets_what_needs_one_or_keeps_others_out(
    tmp_path: Path, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    files, tokens = TlsFiles(tmp_path), tmp_path / "tokens.yaml"
    tokens.write_text(line_of("scraper", TOKEN))
    tls = TlsSettings(certificate=files.issue("http", "127.0.0.1"))
    play(attack, HttpAccess(tls, str(tokens)), files)
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "attack",
    one_in(3, [each for each in ATTACKS if each.in_plain]),
    ids=[each.tried.__name__ for each in ATTACKS if each.in_plain],
)
def test_nobody_keeps_others_out_of_a_plain_port(
    attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    play(attack, HttpAccess(), None)
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_the_page_has_each_attack_and_what_came_of_it() -> None:
    rows = rows_of("At an HTTP port")
    assert rows == [(each.what, each.outcome, each.tried.__name__) for each in ATTACKS]
