"""Requests to the console's application, in a simulated loop: no sockets, and virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from starlette.types import ASGIApp, Message

from tests.console.served import MadeUpCluster, MadeUpLog
from waltz.console.inquiries_shell import Inquiries
from waltz.console.poller_shell import ClusterPoller
from waltz.console.web_shell import Console
from waltz.sim.loop import SimulatedClock, SimulatedLoop


@dataclass
class Got:
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Asks an application."""

    def __init__(self, application: ASGIApp, poller: ClusterPoller) -> None:
        self.application = application
        self.poller = poller

    async def get(self, target: str, method: str = "GET", **headers: str) -> Got:
        """Return the whole answer."""
        body: list[bytes] = []
        start = await self._ask(target, method, headers, body.append, asyncio.Event())
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Got(start["status"], names, b"".join(body).decode())

    async def events(self, target: str, count: int) -> list[Any]:
        """Return the first `count` events of a stream, fewer if it ends before, and go away."""
        found: list[Any] = []
        gone = asyncio.Event()

        def take(body: bytes) -> None:
            for line in body.decode().splitlines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
            if len(found) >= count:
                gone.set()

        await self._ask(target, "GET", {}, take, gone)
        return found[:count]

    async def _ask(
        self,
        target: str,
        method: str,
        headers: dict[str, str],
        take: Callable[[bytes], object],
        gone: asyncio.Event,
    ) -> Message:
        path, _, query = target.partition("?")
        given = {"host": "127.0.0.1:7180"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(), "server": ("127.0.0.1", 7180),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        started: list[Message] = []
        is_asked = False

        async def receive() -> Message:
            nonlocal is_asked
            if not is_asked:
                is_asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            else:
                take(message.get("body", b""))

        await self.application(scope, receive, send)
        return started[0]


def browse(
    story: Callable[[Browser], Coroutine[Any, Any, None]],
    made_up: MadeUpCluster,
    log: MadeUpLog | None = None,
) -> None:
    """Run `story` with a browser of the console of a made-up cluster."""
    loop = SimulatedLoop(1)
    clock = SimulatedClock(loop, Random(1))
    poller = ClusterPoller(clock, made_up, made_up.answers.names)
    inquiries = Inquiries(clock, made_up.ask)
    console = Console(poller, log or MadeUpLog(), inquiries, "127.0.0.1")

    async def main() -> None:
        try:
            await story(Browser(console.application(), poller))
        finally:
            await console.stop()
            await poller.stop()

    try:
        loop.run_until_complete(main())
    finally:
        loop.shut_down()
