"""Waltz in a FastAPI or Starlette application: a client per worker process.

    log = WorkerClient(lambda: waltz.open_async_client(cluster, Notes(engine)))
    app = FastAPI(lifespan=log.lifespan)
    log.install(app)
    Client = Annotated[waltz.AsyncWaltzClient, Depends(log.client)]

Owns when the client is opened and closed, and what a request is answered while there is none. Needs
Starlette only, which every installation of Waltz has; the extra `fastapi` brings FastAPI.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.consistency_token import ConsistencyToken, pauses
from waltz.client.token_middleware_shell import KnowsApplied, TokenMiddleware
from waltz.errors import NoNodeError, UnavailableError
from waltz.ext.unfinished import RETRY_AFTER, UNFINISHED, UNFINISHED_ERRORS, UNFINISHED_STATUS

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 5.0
"""Seconds that the start of the application, and a request, wait for the cluster by default."""

OPEN_AGAIN_SECONDS: Final = 1.0
"""Seconds between two attempts to open the client while the cluster is away."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks whether the client is connected; ages are as exact as that."""


class WorkerClient:
    """The client of each worker process of a web application.

    Making one opens nothing, so a server may import the application before it forks its workers.
    The client is opened when the application starts in its worker. If the cluster is away then, the
    application starts all the same after `wait_seconds`, and the client is opened once the cluster
    is back.
    """

    def __init__(
        self,
        open_client: Callable[[], AsyncWaltzClient],
        *,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """`open_client` is called in the worker, on its loop, and again after each failure to start
        what it returned: it makes callbacks of its own for each client."""
        self._open_client = open_client
        self._wait_seconds = wait_seconds
        self._client: AsyncWaltzClient | None = None
        self._failure: Exception | None = None
        self._is_running = self._has_ended = False
        self._connected_at: float | None = None

    def install(
        self,
        app: Starlette,
        *,
        marks: KnowsApplied | None = None,
        token_wait_seconds: float = 1.0,
        health_path: str | None = "/health",
    ) -> None:
        """Add to `app` the middleware for tokens, which asks `marks`, by default this client; the
        answer 503 to requests that raise UnavailableError or ClientClosedError, which says that the
        request may have taken effect; and the route `health_path`, unless it is None."""
        app.add_middleware(TokenMiddleware, marks=marks or self, wait_seconds=token_wait_seconds)
        for kind in UNFINISHED_ERRORS:
            app.add_exception_handler(kind, _unfinished)
        if health_path is not None:
            app.add_route(health_path, self.answer_health, methods=["GET"])

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncGenerator[None, None]:
        """Open the client, and close it when the block ends, in bounded time: as the lifespan of an
        application, or in a lifespan of its own: `async with log.lifespan(app): ...`.

        Raises what opening raises if waiting does not help, such as ConfigurationError.
        """
        if self._is_running:
            raise RuntimeError("the client of this process is open: enter its lifespan once")
        self._is_running, self._has_ended, self._failure = True, False, None
        keeping = asyncio.create_task(self._keep_open())
        try:
            await self._until(lambda: self._client is not None or keeping.done())
            if keeping.done():
                await keeping  # raises
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            client, self._client, self._is_running = self._client, None, False
            if client is not None:
                await client.close()

    async def client(self) -> AsyncWaltzClient:
        """Return the client, connected to its cluster as far as is known: the dependency of a
        request.

        Waits for that at most `wait_seconds`, then raises HTTPException with status 503 and
        Retry-After. An append may still find the cluster gone: give it `timeout_seconds`.
        """
        if not self._is_connected():
            await self._until(lambda: self._is_connected() or self._is_over())
        client = self._client
        if client is None or not self._is_connected():
            raise HTTPException(UNFINISHED_STATUS, UNFINISHED, RETRY_AFTER)
        return client

    def has_applied(self, token: ConsistencyToken) -> bool:
        """Return whether this process has applied what the token names. Raises UnavailableError:
        there is no client now; otherwise as `AsyncWaltzClient.has_applied`."""
        client = self._client
        if client is None:
            raise UnavailableError("the log has not been reached yet")
        return client.has_applied(token)

    def health(self) -> dict[str, Any]:
        """Return what this process knows of the log, for JSON.

        `state`: `opening`, `open` or `ended`, which needs a new process. `unconnected_seconds`:
        seconds since a server was last seen connected, which is looked at every 0.5 s; 0 while one
        is, None: none was seen yet. A connection counts until it is found broken, by default within
        two heartbeats. Each partition has `applied`, the last transaction that was applied here,
        and `known`, the last one that this process has heard of: the log may go on behind it.
        `blocked_seconds`: how long its next transaction could not be applied; None: nothing is in
        the way.
        """
        client, failure = self._client, self._failure
        if client is None or client.is_closed:
            error = failure if client is None else client.engine.error
            return {
                "state": "ended" if client is not None or self._has_ended else "opening",
                "error": None if error is None else f"{type(error).__name__}: {error}",
                "unconnected_seconds": self._unconnected_seconds(),
            }
        found = client.metrics()
        return {
            "state": "open",
            "connected_servers": found.connected_servers,
            "unconnected_seconds": self._unconnected_seconds(),
            "partitions": {
                str(each.partition_id): {
                    "mounted": each.is_mounted,
                    "applied": each.applied_mark,
                    "known": each.known_mark,
                    "blocked_seconds": each.blocked_seconds,
                }
                for each in found.partitions
            },
        }

    async def answer_health(self, _: Request) -> Response:
        """Answer with `health`: 200 while the client is open and connected, else 503."""
        return JSONResponse(self.health(), 200 if self._is_connected() else 503)

    def _is_connected(self) -> bool:
        """Return whether a server is connected, and note the time if so."""
        client = self._client
        if client is None or client.is_closed or not client.connected_servers:
            return False
        self._connected_at = time.monotonic()
        return True

    def _is_over(self) -> bool:
        """Return whether no request need wait: this process will not have a client any more."""
        return self._has_ended or (self._client is not None and self._client.is_closed)

    def _unconnected_seconds(self) -> float | None:
        if self._is_connected():
            return 0.0
        if self._connected_at is None:
            return None
        return round(time.monotonic() - self._connected_at, 1)

    async def _keep_open(self) -> None:
        """Open the client, again and again while the cluster is away; then note when it was
        connected last. Raises what opening raises if waiting does not help."""
        while self._client is None:
            try:
                client = self._open_client()
                await client.start()
            except (UnavailableError, NoNodeError) as error:
                if str(error) != str(self._failure):
                    logger.warning("client_not_opened error=%r; it is tried again", error)
                self._failure = error
                await asyncio.sleep(OPEN_AGAIN_SECONDS)
            except Exception as error:  # whatever callbacks raise, too
                self._failure, self._has_ended = error, True
                logger.error("client_refused error=%r", error)
                raise
            else:
                self._client = client
        while True:
            self._is_connected()
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds, or after `wait_seconds`."""
        ends_at = time.monotonic() + self._wait_seconds
        for pause in pauses():
            if condition() or (left := ends_at - time.monotonic()) <= 0:
                return
            await asyncio.sleep(min(pause, left))


async def _unfinished(request: Request, error: Exception) -> Response:
    logger.warning("request_unfinished path=%s error=%r", request.url.path, error)
    return PlainTextResponse(f"{UNFINISHED}\n", UNFINISHED_STATUS, RETRY_AFTER)
