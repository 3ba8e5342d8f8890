"""HTTP requests with and without a bearer token, over real sockets, plain and with TLS."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.http_asking import asked
from tests.tls_files import TlsFiles
from waltz.bearer_tokens import line_of, token_of
from waltz.system.http import Answer, HttpServer
from waltz.system.http_tokens import CREDENTIALS_CHARACTERS_MAX, shown_token
from waltz.types import Address, HttpAccess, TlsSettings

LOOPBACK = Address("127.0.0.1", 0)
TOKEN, OTHER, STRANGE = (token_of(bytes([each]) * 32) for each in (1, 2, 3))
ROUTES = {
    "/live": lambda: Answer(200, "text/plain", b"live\n"),
    "/health": lambda: Answer(503, "application/json", b'{"target": "s3://secret"}'),
    "/metrics": lambda: Answer(200, "text/plain", b"figures\n"),
    "/ping": lambda: Answer(200, "text/plain", b"pong\n"),
}


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"{line_of('scraper', TOKEN)}\n{line_of('ann', OTHER)}\n")
    return str(path)


def play(access: HttpAccess, scene: Callable[[HttpServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HttpServer(ROUTES, access=access)
        await server.start(LOOPBACK)
        try:
            await scene(server)
        finally:
            await server.stop()

    asyncio.run(main())


Headers = list[tuple[str, str]]


def bearer(token: str) -> Headers:
    return shows(f"Bearer {token}")


def shows(header: str) -> Headers:
    return [("authorization", header)]


def basic(name: str, token: str) -> Headers:
    return shows(f"Basic {base64.b64encode(f'{name}:{token}'.encode()).decode()}")


def test_every_path_but_those_of_probes_needs_a_token(
    tokens: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: HttpServer) -> None:
        for path in ("/metrics", "/ping", "/none", "/live/", "/%2e/live", "/LIVE", "//live"):
            refused = await asked(server.address, path)
            assert refused.status == 401, path
            assert refused.headers["www-authenticate"].startswith('Bearer realm="waltz", Basic')
            assert "waltz policy token" in refused.text
        for shown in (bearer(TOKEN), bearer(OTHER), basic("scraper", TOKEN)):
            answer = await asked(server.address, "/metrics", shown)
            assert (answer.status, answer.text) == (200, "figures\n")

    play(HttpAccess(tokens=tokens), scene)
    assert "http_request_refused peer=127.0.0.1:" in caplog.text
    assert "reason=no token" in caplog.text


def test_probes_are_told_the_status_and_nothing_else_without_a_token(tokens: str) -> None:
    async def scene(server: HttpServer) -> None:
        for shown in ([], bearer(STRANGE)):
            live = await asked(server.address, "/live", shown)
            assert (live.status, live.text) == (200, "OK\n")
            health = await asked(server.address, "/health", shown)
            assert (health.status, health.text) == (503, "Service Unavailable\n")
        assert (await asked(server.address, "/health", method="HEAD")).status == 503
        whole = await asked(server.address, "/health", bearer(TOKEN))
        assert (whole.status, whole.text) == (503, '{"target": "s3://secret"}')

    play(HttpAccess(tokens=tokens), scene)


@pytest.mark.parametrize(
    "shown",
    [
        bearer(STRANGE),
        bearer(TOKEN[:-1]),
        bearer(f"{TOKEN}A"),
        bearer(TOKEN.lower()),
        basic("ann", TOKEN),
        basic("", TOKEN),
        shows("Bearer"),
        shows("Bearer "),
        shows(f"Token {TOKEN}"),
        shows(TOKEN),
        shows("Basic !!!!"),
        shows(f"Basic {base64.b64encode(TOKEN.encode()).decode()}"),
        shows(f"Bearer {'x' * CREDENTIALS_CHARACTERS_MAX}"),
    ],
)
def test_a_wrong_token_is_refused_and_shown_nowhere(
    tokens: str, shown: Headers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def scene(server: HttpServer) -> None:
        answer = await asked(server.address, f"/metrics/{STRANGE}?token={STRANGE}", shown)
        assert answer.status == 401
        assert STRANGE not in answer.text

    play(HttpAccess(tokens=tokens), scene)
    lines = [each for each in caplog.records if each.name.startswith(("waltz", "uvicorn"))]
    assert any("http_request_refused" in each.getMessage() for each in lines)
    for line in lines:
        for token in (TOKEN, STRANGE):
            assert token not in line.getMessage()


def test_two_authorization_headers_are_none(tokens: str) -> None:
    async def scene(server: HttpServer) -> None:
        headers = [("authorization", f"Bearer {each}") for each in (STRANGE, TOKEN)]
        for shown in (headers, headers[::-1]):
            assert (await asked(server.address, "/metrics", shown)).status == 401

    play(HttpAccess(tokens=tokens), scene)


def test_without_a_file_of_tokens_nobody_is_asked_for_one() -> None:
    async def scene(server: HttpServer) -> None:
        assert (await asked(server.address, "/metrics")).text == "figures\n"
        assert (await asked(server.address, "/live", bearer("x"))).text == "live\n"

    play(HttpAccess(), scene)


def test_an_application_has_no_open_paths(tokens: str) -> None:
    async def everything(scope: object, receive: object, send: object) -> None:
        raise AssertionError("a request came through")

    async def main() -> None:
        server = HttpServer(everything, access=HttpAccess(tokens=tokens))
        await server.start(LOOPBACK)
        assert (await asked(server.address, "/live")).status == 401
        await server.stop()

    asyncio.run(main())


def test_tokens_are_asked_for_with_tls_too(tokens: str, tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    tls = TlsSettings(certificate=files.issue("http", "127.0.0.1"))

    async def scene(server: HttpServer) -> None:
        assert server.url.startswith("https://127.0.0.1:")
        for shown, status in ([], 401), (bearer(TOKEN), 200):
            answer = await asked(server.address, "/metrics", shown, authorities=files.authorities)
            assert answer.status == status

    play(HttpAccess(tls, tokens), scene)


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ("Bearer abc", (None, "abc")),
        ("bearer  abc ", (None, "abc")),
        ("Basic YW5uOmFiYw==", ("ann", "abc")),
        ("Basic YW5uOmE6Yg==", ("ann", "a:b")),
        ("Basic YW5u", None),
        ("Basic YW5uOmFiYw==x", None),
        ("Basic /w==", None),
        ("Digest abc", None),
        ("", None),
    ],
)
def test_a_token_is_read_from_a_header(header: str, shown: tuple[str | None, str] | None) -> None:
    assert shown_token(header) == shown
