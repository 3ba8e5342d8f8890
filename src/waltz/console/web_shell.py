"""The console over HTTP: pages, files, and streams of events.

Owns the routes and their bounds. A stream sends what has changed on one page after each round of
the poller, and ends after a while: the browser opens the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waltz.console.admission import HEADERS, refusal
from waltz.console.detail_pages import inquiries_of, life_path, moment_path, query_of, wanted_of
from waltz.console.inquiries import PlaceOf, RequestOf
from waltz.console.inquiries_shell import Inquiries
from waltz.console.live_tail_shell import LiveTails, TailKind
from waltz.console.log_window_shell import LogWindow
from waltz.console.pages import Rendered, Sent
from waltz.console.plain_text import plain
from waltz.console.poller_shell import ClusterPoller
from waltz.console.site import PATH_CHARACTERS_MAX, Site, found_path, message_page, tail_page
from waltz.console.view import View, number_in

STREAMS_MAX: Final = 256
"""Streams of events at a time; one more is refused, and its page says that it does not move."""

STREAM_SECONDS_MAX: Final = 50.0
"""Seconds of one stream, less than a connection's request may take."""

RECONNECT_MILLISECONDS: Final = 500
"""Milliseconds after which a browser opens the next stream."""

INQUIRY_SECONDS_MAX: Final = 2.0
"""Seconds that a page waits for what is asked for it alone; then its stream brings it."""

TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
THEMES: Final = ("dark", "light")

Endpoint = Callable[[Request], Awaitable[Response]]


class Console:
    """The answers to requests."""

    def __init__(
        self,
        poller: ClusterPoller,
        window: LogWindow,
        inquiries: Inquiries,
        served_at: str | None,
        lock_names: tuple[str, ...] = (),
    ) -> None:
        """`served_at` is as for `refusal`; locks are shown under `lock_names`."""
        self._poller = poller
        self._inquiries = inquiries
        self._lock_names = lock_names
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
        """End the streams, which otherwise last for almost a minute, and all questions that pages
        ask. Idempotent."""
        for each in self._streams:
            each.reschedule(asyncio.get_running_loop().time())
        await self._tails.stop()
        await self._inquiries.stop()

    async def _view(self) -> View:
        await self._poller.look()
        return self._view_now()

    def _view_now(self) -> View:
        """Return the last picture with everything it was made from."""
        poller = self._poller
        inquiries = self._inquiries
        return View(
            (poller.number, inquiries.number),
            poller.picture,
            poller.last,
            poller.history,
            inquiries.told,
            partial(inquiries.told, asks=False),
            self._lock_names,
            poller.wall_milliseconds(),
        )

    async def _inquire(self, target: str, view: View) -> View:
        """Return the view once the page's questions were answered, or a short time has passed."""
        if questions := inquiries_of(target, view):
            asking = (self._inquiries.first(each, INQUIRY_SECONDS_MAX) for each in questions)
            await asyncio.gather(*asking)
            return self._view_now()
        return view

    async def _page(self, request: Request) -> Response:
        view = await self._view()
        target = _target(request)
        if len(target) <= PATH_CHARACTERS_MAX:
            view = await self._inquire(target, view)
        found = self._site.page(target, view)
        if found is None:
            return self._missing(request, view, f"There is no page {plain(target, 100)} here.")
        return _html(request, found, found.status)

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
        return _elsewhere(path)

    async def _transaction(self, request: Request) -> Response:
        """Answer with the page, or with where the transaction is that was looked for."""
        view, target = await self._view(), _target(request)
        if len(target) > PATH_CHARACTERS_MAX:
            return await self._page(request)
        question = wanted_of(query_of(target), view.picture, view.wall_milliseconds)
        if question.is_relative and isinstance(question.question, PlaceOf):
            return _elsewhere(moment_path(question.question))
        if isinstance(question.question, RequestOf):
            told = await self._inquiries.first(question.question, INQUIRY_SECONDS_MAX)
            if told.answer is not None and told.answer.transaction_id is not None:
                number = question.question.request_id.partition_id
                return _elsewhere(life_path(number, told.answer.transaction_id))
        return await self._page(request)

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


def _target(request: Request) -> str:
    """Return the path with its query, as they were asked for."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _elsewhere(path: str) -> Response:
    return Response(status_code=303, headers={"location": path})


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

    def __init__(self, application: ASGIApp, served_at: str | None) -> None:
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
