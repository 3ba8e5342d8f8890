"""Posts to receivers of every kind; most of them are hostile."""

from __future__ import annotations

import asyncio
import ssl
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tls_files import TlsFiles
from waltz.bridge.webhook_shell import (
    BODY_BYTES_MAX,
    Answer,
    PostFailedError,
    Webhook,
    WebhookConnection,
)

TIMEOUT = 1.0
PATIENCE = 60.0
"""The time of a post that is to be answered."""

Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def posting(
    serve: Serving,
    posts: int = 1,
    *,
    tls: ssl.SSLContext | None = None,
    trusted: ssl.SSLContext | None = None,
    body: bytes = b"[]",
    seconds: float = PATIENCE,
) -> list[Answer | str]:
    """Post one after the other to `serve`, each for at most `seconds`; return the answers, or the
    errors."""

    async def main() -> list[Answer | str]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, EOFError):
                await serve(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        scheme = "http" if trusted is None else "https"
        webhook = Webhook(f"{scheme}://localhost:{port}/in?a=b", trusted, seconds)
        connection = WebhookConnection(webhook)
        found: list[Answer | str] = []
        for _ in range(posts):
            try:
                found.append(await connection.post([("Waltz-First", "1")], body))
            except PostFailedError as error:
                found.append(str(error))
        connection.close()
        server.close()
        return found

    return asyncio.run(main())


def answering(answer: bytes) -> Serving:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(answer)
            await writer.drain()

    return serve


def endless(start: bytes, piece: bytes) -> Serving:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()

    return serve


def test_a_connection_is_used_again() -> None:
    seen: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            seen.append(await request_of(reader))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    assert posting(serve, 3) == [Answer(200, None, b"")] * 3
    assert (connections, len(seen)) == (1, 3)
    assert seen[0].startswith(b"POST /in?a=b HTTP/1.1\r\n")
    assert b"Waltz-First: 1\r\n" in seen[0]


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 204 OK\r\n\r\n")
        await writer.drain()

    assert posting(serve, 3) == [Answer(204, None, b"")] * 3


def test_a_redirect_is_an_answer_and_nothing_is_sent_elsewhere() -> None:
    answer = b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    (found,) = posting(answering(answer))
    assert isinstance(found, Answer)
    assert not found.is_acceptance
    assert "redirects are not followed" in found.text()


def test_a_refusal_is_told_with_the_start_of_its_body_which_cannot_forge_a_line() -> None:
    answer = b"HTTP/1.1 422 No\r\nContent-Length: 500\r\n\r\n" + b"bad\n\x1b[31m" + b"x" * 492
    (found,) = posting(answering(answer))
    assert isinstance(found, Answer)
    assert found.is_for_content
    assert "answers 422: bad\\n\\x1b[31mxxx" in found.text()
    assert len(found.text()) < 300


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("17", 17.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("9" * 5_000, 999_999_999.0),
        ("\u0663", None),
        ("Fri, 99 Foo 9999999 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(asked: str, seconds: float | None) -> None:
    assert Answer(503, asked, b"").retry_after_seconds(40.0) == seconds


def test_a_date_without_a_zone_is_in_universal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of the three forms that HTTP allows names no zone."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        asked = Answer(503, "Thu Jan  1 00:01:40 1970", b"").retry_after_seconds(40.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert asked == 60.0


def test_a_receiver_s_status_says_whether_fewer_transactions_may_help() -> None:
    tried = {each for each in range(200, 600) if Answer(each, None, b"").is_for_content}
    assert {400, 413, 422} <= tried
    assert not tried & {204, 301, 401, 403, 404, 408, 429, 500, 503}


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "serve",
    [
        endless(OK + b"\r\n", b"x" * 65_536),
        endless(OK + b"Content-Length: 999999999999\r\n\r\n", b"x" * 65_536),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1_000),
        answering(OK + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
        answering(OK + b"Content-Length: 10\r\n\r\nslow"),
    ],
)
def test_what_comes_after_an_acceptance_costs_little_and_changes_nothing(serve: Serving) -> None:
    tracemalloc.start()
    assert posting(serve) == [Answer(200, None, b"")]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * BODY_BYTES_MAX


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def never_reads(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(60)


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request_of(reader)
    writer.write(OK)
    while True:
        writer.write(b"A: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("serve", "text"),
    [
        (silent, "no answer in 1 s (bridge.timeout)"),
        (never_reads, "no answer in 1 s (bridge.timeout)"),
        (drips, "no answer in 1 s (bridge.timeout)"),
        (endless(OK, b"A: " + b"b" * 1_000 + b"\r\n"), "no answer: "),
        (endless(OK + b"A: ", b"b" * 65_536), "no answer: "),
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10), "too many answers 1xx"),
        (endless(b"", b"\x16\x03\x01garbage" * 1_000), "no answer: "),
        (answering(b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\n\r\n"), "no answer: "),
        (answering(b"HTTP/1.1 20 OK\r\n\r\n"), "no answer: "),
        (answering(b"SSH-2.0-OpenSSH\r\n"), "no answer in 1 s (bridge.timeout)"),
    ],
)
def test_a_hostile_receiver_costs_an_attempt_and_no_more(serve: Serving, text: str) -> None:
    tracemalloc.start()
    body = b"x" * (4 * 1024 * 1024) if serve is never_reads else b"[]"
    seconds = TIMEOUT if "bridge.timeout" in text else PATIENCE
    (found,) = posting(serve, body=body, seconds=seconds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, str), found
    assert text in found
    assert peak < 16 * 1024 * 1024


def test_a_connection_that_is_closed_without_an_answer_is_no_acceptance() -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await request_of(reader)

    (found,) = posting(serve)
    assert "no answer: " in str(found)
    assert "closed" in str(found)


def test_an_answer_is_heard_that_comes_before_all_of_the_post_is_sent() -> None:
    """A receiver that finds a post too large may answer, and close, without reading it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    (found,) = posting(serve, body=b"x" * (32 * 1024 * 1024))
    assert found == Answer(413, None, b"")


def test_a_post_is_accepted_once_all_of_it_is_sent() -> None:
    received: list[int] = []
    size = 32 * 1024 * 1024

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        await writer.drain()

    async def thorough(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await hasty(reader, writer)
            received.append(len(await reader.readexactly(size)))

    assert "no answer" in str(posting(hasty, body=b"x" * size))
    assert posting(thorough, 2, body=b"x" * size) == [Answer(200, None, b"")] * 2
    assert received[0] == size


def test_a_receiver_s_certificate_is_verified(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(files.issue("hook", "localhost"))
    ok = answering(OK + b"Content-Length: 0\r\n\r\n")
    mine = ssl.create_default_context(cafile=files.authorities)
    assert posting(ok, tls=server, trusted=mine) == [Answer(200, None, b"")]
    (found,) = posting(ok, tls=server, trusted=ssl.create_default_context())
    assert "certificate is not accepted" in str(found)
    assert "bridge.caFile" in str(found)
    (found,) = posting(ok, trusted=mine, seconds=TIMEOUT)
    assert "no answer" in str(found), "a receiver that speaks no TLS"
