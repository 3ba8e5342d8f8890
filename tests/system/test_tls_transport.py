"""HTTP over TLS, as peers of every kind see it: certificates, renewal, halves of handshakes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.http_asking import asked
from tests.tls_files import TlsFiles
from waltz.system import http as http_module
from waltz.system import tls as tls_module
from waltz.system.http import PROBES, Answer, HttpBounds, HttpServer
from waltz.types import Address, HttpAccess, TlsSettings

LOOPBACK = Address("127.0.0.1", 0)
BODY = "x" * 300_000
"""Longer than one TLS record, and than the bytes after which writing pauses."""


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def play(
    tls: TlsSettings,
    scene: Callable[[HttpServer], Awaitable[None]],
    bounds: HttpBounds = PROBES,
) -> None:
    async def main() -> None:
        routes = {"/long": lambda: Answer(200, "text/plain", BODY.encode())}
        server = HttpServer(routes, bounds, HttpAccess(tls))
        await server.start(LOOPBACK)
        try:
            await scene(server)
        finally:
            await server.stop()

    asyncio.run(main())


def own(files: TlsFiles) -> TlsSettings:
    return TlsSettings(certificate=files.issue("http", "127.0.0.1"))


def client_hello() -> bytes:
    """Return the first bytes of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1"
    )
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


async def what_comes(reader: asyncio.StreamReader) -> bytes:
    """Return all that arrives until the connection ends, in whatever way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_an_answer_comes_whole_and_several_come_over_one_connection(files: TlsFiles) -> None:
    async def scene(server: HttpServer) -> None:
        context = ssl.create_default_context(cafile=files.authorities)
        reader, writer = await asyncio.open_connection(*server.address, ssl=context)
        for _ in range(3):
            writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert (await reader.readexactly(len(BODY))).decode() == BODY
        writer.close()
        answer = await asked(server.address, "/long", authorities=files.authorities)
        assert answer.text == BODY

    play(own(files), scene)


def test_who_speaks_plain_is_told_in_its_own_words(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: HttpServer) -> None:
        answer = await asked(server.address, "/long")
        assert (answer.status, answer.text) == (400, "this port speaks TLS only: use https://\n")
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"\x00\x00\x00\x20WALTZ")
        assert (await what_comes(reader)).startswith(b"\x15\x03"), "an alert"
        writer.close()

    play(own(files), scene)
    assert "reason=it speaks plain, and this port TLS only" in caplog.text
    assert "tls_believes_anyone" not in caplog.text, "a certificate alone is what an HTTP port has"


def test_clients_of_another_authority_do_not_believe_it(files: TlsFiles, tmp_path: Path) -> None:
    async def scene(server: HttpServer) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(server.address, "/long", authorities=TlsFiles(tmp_path).authorities)

    play(own(files), scene)


def test_with_authorities_everybody_shows_a_certificate_of_theirs(
    files: TlsFiles, tmp_path: Path
) -> None:
    async def scene(server: HttpServer) -> None:
        shown = files.issue("scraper")
        answer = await asked(
            server.address, "/long", authorities=files.authorities, certificate=shown
        )
        assert answer.status == 200
        for certificate in (None, TlsFiles(tmp_path).issue("stranger")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asked(
                    server.address, "/long", authorities=files.authorities, certificate=certificate
                )

    play(replace(own(files), authorities=files.authorities), scene)


def test_a_renewed_certificate_is_shown_to_the_next_connection(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "TLS_LOOK_SECONDS", 0.0)
    settings, later = own(files), TlsFiles(tmp_path)
    path = Path(str(settings.certificate))

    async def scene(server: HttpServer) -> None:
        context = ssl.create_default_context(cafile=files.authorities)
        reader, writer = await asyncio.open_connection(*server.address, ssl=context)
        Path(later.issue("http", "127.0.0.1")).replace(path)
        assert (await asked(server.address, "/long", authorities=later.authorities)).status == 200
        writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200"), "open ones go on"
        writer.close()

    play(settings, scene)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_half_a_handshake_is_ended_in_time(
    files: TlsFiles, share: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_module, "HANDSHAKE_SECONDS_MAX", 0.2)
    hello = client_hello()

    async def scene(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(hello[: int(len(hello) * share)])
        await what_comes(reader)
        writer.close()

    play(own(files), scene)
    assert "it did not finish the handshake in 0.2 s" in caplog.text


def test_halves_of_handshakes_give_way_before_whoever_has_finished_one(files: TlsFiles) -> None:
    """However long the latter has been silent, and however many of the former come."""
    bounds = HttpBounds(connections_max=8)
    hello = client_hello()

    async def scene(server: HttpServer) -> None:
        context = ssl.create_default_context(cafile=files.authorities)
        silent = [await asyncio.open_connection(*server.address, ssl=context) for _ in range(4)]
        halves = []
        for _ in range(10 * bounds.connections_max):
            halves.append(await asyncio.open_connection(*server.address))
            halves[-1][1].write(hello)
        assert (await asked(server.address, "/long", authorities=files.authorities)).status == 200
        for reader, writer in silent:
            writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        for _, writer in halves:
            writer.close()

    play(own(files), scene, bounds)


def test_a_peer_that_breaks_tls_is_cut_off(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: HttpServer) -> None:
        for data in (b"\x16" * 1000, client_hello() + b"\x17\x03\x03\x00\x05xxxxx"):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(data)
            await what_comes(reader)
            writer.close()
        assert (await asked(server.address, "/long", authorities=files.authorities)).status == 200

    play(own(files), scene)
    assert caplog.text.count("connection_refused peer=127.0.0.1:") == 2


def test_a_peer_that_goes_in_the_middle_of_an_answer_breaks_nothing(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: HttpServer) -> None:
        context = ssl.create_default_context(cafile=files.authorities)
        for _ in range(5):
            _, writer = await asyncio.open_connection(*server.address, ssl=context)
            writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            await writer.drain()
            writer.transport.abort()
        assert (await asked(server.address, "/long", authorities=files.authorities)).status == 200

    play(own(files), scene)
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
