"""A web application that gives tokens, and holds requests back until they are applied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import waltz
from tests.client.sql_applications import APPLIED, Applying, new_engine, rows
from waltz.client import token_middleware_shell
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.consistency_token import ConsistencyToken
from waltz.client.token_middleware_shell import TokenMiddleware, give_token
from waltz.errors import ClientClosedError, HistoryChangedError, NotFoundError
from waltz.testing import InMemoryCluster

PAGE = Path(__file__).parents[2] / "docs" / "reading-your-writes.md"
HISTORY = UUID(int=5)


def token_of(**marks: int) -> ConsistencyToken:
    """Return a token; the partition of `p3` is 3."""
    return ConsistencyToken.of(HISTORY, {int(name[1:]): mark for name, mark in marks.items()})


class Marks:
    """Has applied what `applied` says; an error in its place is raised."""

    def __init__(self, applied: int | Exception = -1) -> None:
        self.applied = applied
        self.looks = 0

    def has_applied(self, token: ConsistencyToken) -> bool:
        self.looks += 1
        if isinstance(self.applied, Exception):
            raise self.applied
        return all(mark <= self.applied for mark in token.marks.values())


async def write(request: Request) -> Response:
    give_token(request.scope, token_of(p0=7))
    give_token(request.scope, token_of(p1=3))
    return PlainTextResponse("written")


async def read(request: Request) -> Response:
    return PlainTextResponse("read")


def site(marks: Marks, wait_seconds: float = 60.0) -> TokenMiddleware:
    app = Starlette(routes=[Route("/write", write), Route("/read", read)])
    return TokenMiddleware(app, marks, wait_seconds=wait_seconds)


async def ask(
    app: ASGIApp, path: str, *tokens: str, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of the answer to a request with these tokens."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"waltz-token", each.encode()) for each in tokens]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": b"",
    }
    await app(scope, receive, send)
    start, *rest = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(each["body"] for each in rest).decode()


async def ask_until_applied(app: ASGIApp, path: str, token: str) -> tuple[int, dict[str, str], str]:
    """Ask again as long as the answer is 425, as the page tells users to do."""
    while (answer := await ask(app, path, token))[0] == 425:
        pass
    return answer


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(in_time())


def test_a_response_gives_all_tokens_of_its_request_together() -> None:
    async def work() -> None:
        app = site(Marks(9))
        assert (await ask(app, "/write"))[1]["waltz-token"] == str(token_of(p0=7, p1=3))
        brought = str(token_of(p0=9, p4=2))
        status, headers, text = await ask(app, "/write", brought)
        assert (status, text) == (200, "written")
        assert headers["waltz-token"] == str(token_of(p0=9, p1=3, p4=2))
        assert "waltz-token" not in (await ask(app, "/read", brought))[1]

    run(work)


def test_the_token_of_another_history_is_not_given_on() -> None:
    async def work() -> None:
        brought = str(ConsistencyToken.of(UUID(int=6), {0: 9}))
        _, headers, _ = await ask(site(Marks(9)), "/write", brought)
        assert headers["waltz-token"] == str(token_of(p0=7, p1=3))

    run(work)


def test_a_request_waits_for_its_token_and_others_do_not() -> None:
    async def work() -> None:
        marks = Marks(3)
        app = site(marks)
        waiting = asyncio.create_task(ask(app, "/read", str(token_of(p0=4))))
        while marks.looks < 3:
            await asyncio.sleep(0.001)
        assert (await ask(app, "/read"))[0] == 200
        assert (await ask(app, "/read", str(token_of(p0=3))))[0] == 200
        assert not waiting.done()
        marks.applied = 4
        assert (await waiting)[0] == 200

    run(work)


def test_a_request_that_has_waited_too_long_may_be_repeated() -> None:
    async def work() -> None:
        status, headers, text = await ask(site(Marks(3), 0.01), "/read", str(token_of(p0=4)))
        assert (status, headers["retry-after"]) == (425, "1")
        assert "not been applied here yet" in text

    run(work)


def test_only_so_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_middleware_shell, "WAITING_MAX", 2)

    async def work() -> None:
        marks, far = Marks(3), str(token_of(p0=1 << 62))
        app = site(marks)
        waiting = [asyncio.create_task(ask(app, "/read", far)) for _ in range(2)]
        while marks.looks < 6:
            await asyncio.sleep(0.001)
        looks = marks.looks
        assert (await ask(app, "/read", far))[0] == 425
        assert marks.looks > looks
        marks.applied = 1 << 62
        assert [(await each)[0] for each in waiting] == [200, 200]
        assert (await ask(app, "/read", far))[0] == 200

    run(work)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HistoryChangedError("restored"), 409),
        (NotFoundError("there is no partition 7"), 400),
        (ClientClosedError("closed"), 503),
    ],
)
def test_what_the_marks_refuse_is_told(error: Exception, status: int) -> None:
    async def work() -> None:
        found, _, text = await ask(site(Marks(error)), "/read", str(token_of(p7=1)))
        assert (found, text) == (status, f"{error}\n")

    run(work)


def test_marks_without_an_answer_are_no_fault_of_the_application(tmp_path: Path) -> None:
    """A database that is away; its error may name users and hosts, which the answer does not."""

    async def work() -> None:
        engine = new_engine(f"sqlite:///{tmp_path / 'missing' / 'app.db'}")
        app = TokenMiddleware(site(Marks(9)), waltz.DatabaseMarks(engine))
        status, headers, text = await ask(app, "/read", str(token_of(p0=1)))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "sqlite" not in text
        assert (await ask(app, "/read"))[0] == 200

    run(work)


@pytest.mark.parametrize("tokens", [("",), ("x" * 100_000,), (str(token_of(p0=1)),) * 2])
def test_a_header_that_is_no_token_is_refused(tokens: tuple[str, ...]) -> None:
    async def work() -> None:
        marks = Marks(9)
        assert (await ask(site(marks), "/read", *tokens))[0] == 400
        assert marks.looks == 0

    run(work)


def test_what_is_no_request_is_passed_on() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any: ...

    for kind in ("lifespan", "websocket"):
        asyncio.run(TokenMiddleware(app, Marks())({"type": kind}, nothing, nothing))
    assert seen == ["lifespan", "websocket"]


def test_the_application_of_the_page_shows_what_was_written(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(import waltz\n.*?)```", PAGE.read_text(), re.DOTALL)
    engine = new_engine(f"sqlite:///{tmp_path / 'notes.db'}")
    APPLIED.metadata.create_all(engine)

    async def work() -> None:
        with InMemoryCluster(for_tests=True) as cluster:
            following = cluster.open_client(Applying(engine))
            async with cluster.open_async_client(NoCallbacks()) as client:
                names = {"client": client, "engine": engine, "read_notes": lambda: rows(engine)}
                exec(code, names)
                app: Any = names["app"]
                token = ""
                for number in range(20):
                    brought = (token,) if token else ()
                    status, headers, _ = await ask(app, "/notes", *brought, method="POST")
                    token = headers["waltz-token"]
                    assert status == 201
                    status, _, text = await ask_until_applied(app, "/notes", token)
                    assert status == 200
                    assert text == str([*range(number + 1)]).replace(" ", "")
            following.close()

    run(work)
