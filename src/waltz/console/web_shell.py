"""The console over HTTP: pages, files, and streams of events.

Owns the routes and their bounds. A stream sends what has changed on one page after each round of
the poller, and ends after a while: the browser opens the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waltz.console.admission import HEADERS, refusal
from waltz.console.live_tail_shell import LiveTails, TailKind
from waltz.console.log_window_shell import LogWindow
from waltz.console.pages import Rendered, Sent
from waltz.console.plain_text import plain
from waltz.console.poller_shell import ClusterPoller
from waltz.console.site import (
    Site,
    View,
    found_path,
    message_page,
    number_in,
    tail_page,
    transaction_page,
)
from waltz.console.tail_sample import Range, Row
from waltz.errors import WaltzError
from waltz.types import PartitionId

STREAMS_MAX: Final = 256
"""Streams of events at a time; one more is refused, and its page says that it does not move."""

STREAM_SECONDS_MAX: Final = 50.0
"""Seconds of one stream, less than a connection's request may take."""

RECONNECT_MILLISECONDS: Final = 500
"""Milliseconds after which a browser opens the next stream."""

TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
THEMES: Final = ("dark", "light")

Endpoint = Callable[[Request], Awaitable[Response]]


class Console:
    """The answers to requests."""

    def __init__(self, poller: ClusterPoller, window: LogWindow, served_at: str) -> None:
        """`served_at` is the host of --http."""
        self._poller = poller
        self._window = window
        self._tails = LiveTails(poller, window)
        self._site = Site()
        self._served_at = served_at
        self._streams: set[asyncio.Timeout] = set()
        """The time limit of each stream under way."""

    def application(self) -> ASGIApp:
        """Return the application, behind the checks of every request."""
        application = Starlette(
            routes=[
                Route("/static/{name}", _static),
                Route("/events", self._events),
                Route("/tail/events", self._tail_events),
                Route("/tail", self._tail),
                Route("/transaction", self._transaction),
                Route("/search", self._search),
                Route("/{path:path}", self._page),
            ]
        )
        return _Guarded(application, self._served_at)

    async def stop(self) -> None:
        """End the streams, which otherwise last for almost a minute. Idempotent."""
        for each in self._streams:
            each.reschedule(asyncio.get_running_loop().time())
        await self._tails.stop()

    async def _view(self) -> View:
        await self._poller.look()
        return self._view_now()

    def _view_now(self) -> View:
        """Return the last picture with everything it was made from."""
        poller = self._poller
        return View(poller.number, poller.picture, poller.last, poller.history)

    async def _page(self, request: Request) -> Response:
        view = await self._view()
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        found = self._site.page(target, view)
        if found is None:
            return self._missing(request, view, f"There is no page {plain(target, 100)} here.")
        return _html(request, found)

    def _missing(self, request: Request, view: View, text: str) -> Response:
        return _html(request, message_page(view.picture, "Not found", text), 404)

    async def _search(self, request: Request) -> Response:
        view = await self._view()
        query = request.query_params.get("q", "")
        path = found_path(query, view.picture)
        if path is None:
            text = (
                f"Nothing is called {plain(query, 100)}. Type a partition (3), a transaction"
                " (3:17), or the name or address of a storage node or server."
            )
            return self._missing(request, view, text)
        return Response(status_code=303, headers={"location": path})

    async def _transaction(self, request: Request) -> Response:
        picture = (await self._view()).picture
        wanted = request.query_params.get("partition", ""), request.query_params.get("id", "")
        partition, transaction = map(number_in, wanted)
        with_data = request.query_params.get("data") == "1"
        row, problem = None, ""
        if any(wanted):
            if partition is None or transaction is None:
                problem = "A partition and a transaction ID are whole numbers."
            else:
                row, problem = await self._read(partition, transaction)
        page = transaction_page(picture, wanted, row, problem=problem, with_data=with_data)
        return _html(request, page, 404 if problem else 200)

    async def _read(self, partition: int, transaction: int) -> tuple[Row | None, str]:
        try:
            wanted = Range(PartitionId(partition), transaction, transaction + 1)
            rows = await self._window.read(wanted, with_data=True)
        except (WaltzError, TimeoutError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            return None, f"Transaction {transaction} of partition {partition}: {reason}"
        return rows[0], ""

    async def _tail(self, request: Request) -> Response:
        picture = (await self._view()).picture
        partition = number_in(request.query_params.get("partition", ""))
        with_data = request.query_params.get("data") == "1"
        return _html(request, tail_page(picture, partition, with_data=with_data))

    async def _tail_events(self, request: Request) -> Response:
        partition = number_in(request.query_params.get("partition", ""))
        kind = TailKind(partition, request.query_params.get("data") == "1")
        return self._stream(self._tails.follow(kind))

    async def _events(self, request: Request) -> Response:
        return self._stream(self._changes(request.query_params.get("page", "")))

    async def _changes(self, target: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what changes on a page, all of it first."""
        sent = Sent()
        async with contextlib.aclosing(self._poller.pictures()) as pictures:
            async for _ in pictures:
                page = self._site.page(target, self._view_now())
                if page is None:
                    yield {"reload": True}
                    return
                yield sent.changes(page)

    def _stream(self, events: AsyncGenerator[dict[str, Any], None]) -> Response:
        if len(self._streams) >= STREAMS_MAX:
            return PlainTextResponse(f"{STREAMS_MAX} viewers look already.", 503)

        async def lines() -> AsyncIterator[bytes]:
            yield b"retry: %d\n\n" % RECONNECT_MILLISECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STREAM_SECONDS_MAX) as limit:
                    self._streams.add(limit)
                    try:
                        async with contextlib.aclosing(events):
                            async for event in events:
                                text = json.dumps(event, separators=(",", ":"))
                                yield b"data: " + text.encode() + b"\n\n"
                    finally:
                        self._streams.discard(limit)

        return StreamingResponse(lines(), media_type="text/event-stream")


def _html(request: Request, page: Rendered, status: int = 200) -> Response:
    html = page.whole()
    theme = request.cookies.get("theme")
    if theme in THEMES:
        html = html.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">', 1)
    return HTMLResponse(html, status)


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("There is no such file.", 404)
    content, kind = found
    return Response(content, headers={"cache-control": "max-age=300"}, media_type=kind)


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the content and the type of each file that pages load."""
    folder = files("waltz.console").joinpath("static")
    return {
        each.name: (each.read_bytes(), TYPES[each.name.rpartition(".")[2]])
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in TYPES
    }


class _Guarded:
    """Refuses requests that are not for the console, and adds its headers to every answer."""

    def __init__(self, application: ASGIApp, served_at: str) -> None:
        self._application = application
        self._served_at = served_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope), self._served_at)
        if refused is not None:
            status, text = refused
            await PlainTextResponse(f"{text}\n", status)(scope, receive, send_guarded)
            return
        await self._application(scope, receive, send_guarded)
