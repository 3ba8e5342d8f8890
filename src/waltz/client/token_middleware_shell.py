"""Lets the users of a web application read what they have written, by a token in HTTP headers.

Owns the two headers' way through a request: the token that a response gives, and the wait for the
token that a later request brings back, perhaps to another process. For every ASGI application:
FastAPI, Starlette, Django and others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waltz.client.applying.blocked import one_line
from waltz.client.consistency_token import ConsistencyToken, pauses
from waltz.errors import HistoryChangedError, LocalProtocolError, NotFoundError, WaltzError

HEADER: Final = "waltz-token"
"""The header of requests and of responses."""

WAITING_MAX: Final = 100
"""Requests that wait at the same time; others are told at once that it is too early. Anybody can
send a token that names a transaction of next year."""

RETRY_AFTER_SECONDS: Final = 1

GIVEN: Final = "waltz.token"
"""The key of a request's scope with the token that its response gives."""

TOO_EARLY: Final = (
    "what the token in the header Waltz-Token names has not been applied here yet; repeat the"
    " request\n"
)

NO_ANSWER: Final = (
    "nobody could tell whether what the token in the header Waltz-Token names has been applied"
    " here; repeat the request\n"
)

logger = logging.getLogger(__name__)


class KnowsApplied(Protocol):
    """A client, or `DatabaseMarks`."""

    def has_applied(self, token: ConsistencyToken) -> bool: ...


def give_token(scope: MutableMapping[str, Any], token: ConsistencyToken) -> None:
    """Have the response to the request with this ASGI scope give `token`, next to others that were
    given before: `give_token(request.scope, client.token({partition: transaction}))`.

    Raises LocalProtocolError: too many partitions together, or two histories.
    """
    before = scope.get(GIVEN)
    scope[GIVEN] = token if before is None else before | token


class TokenMiddleware:
    """Holds a request with the header `Waltz-Token` back until what the token names has been
    applied, and adds the header to responses.

    `marks` is asked, in a thread: a client of this process, or the `DatabaseMarks` of the database
    that requests read. A request waits at most `wait_seconds`, then it is answered with 425 (too
    early) and may be repeated. 409: a restore has replaced the log that the token is of; 400: the
    header has no token of this log; 503: `marks` has no answer.
    """

    def __init__(self, app: ASGIApp, marks: KnowsApplied, *, wait_seconds: float = 1.0) -> None:
        self._app = app
        self._marks = marks
        self._wait_seconds = wait_seconds
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        texts = Headers(scope=scope).getlist(HEADER)
        refusal, brought = None, None
        if texts:
            try:
                brought = ConsistencyToken.parse(",".join(texts))
                refusal = await self._refusal(brought)
            except WaltzError as error:
                refusal = PlainTextResponse(f"{error}\n", status_of(error))
            except Exception as error:  # a database that is away raises errors of its library
                logger.warning("token_not_compared error=%s", one_line(error))
                retry_after = {"retry-after": str(RETRY_AFTER_SECONDS)}
                refusal = PlainTextResponse(NO_ANSWER, 503, retry_after)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_with_token(message: Message) -> None:
            given: ConsistencyToken | None = scope.get(GIVEN)
            if message["type"] == "http.response.start" and given is not None:
                MutableHeaders(scope=message)[HEADER] = str(together(brought, given))
            await send(message)

        await self._app(scope, receive, send_with_token)

    async def _refusal(self, token: ConsistencyToken) -> Response | None:
        """Return None once what the token names has been applied; an answer if that takes too
        long."""
        if await run_in_threadpool(self._marks.has_applied, token):
            return None
        if self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_seconds):
                        await self._until_applied(token)
                    return None
            finally:
                self._waiting -= 1
        return PlainTextResponse(TOO_EARLY, 425, {"retry-after": str(RETRY_AFTER_SECONDS)})

    async def _until_applied(self, token: ConsistencyToken) -> None:
        for pause in pauses():
            await asyncio.sleep(pause)
            if await run_in_threadpool(self._marks.has_applied, token):
                return


def together(brought: ConsistencyToken | None, given: ConsistencyToken) -> ConsistencyToken:
    """Return a token for both, so that a user need keep the newest only; `given` if there is none
    for both."""
    if brought is None:
        return given
    try:
        return brought | given
    except LocalProtocolError:
        return given


def status_of(error: WaltzError) -> int:
    """Return the HTTP status of a request whose token was answered with `error`."""
    if isinstance(error, HistoryChangedError):
        return 409
    if isinstance(error, LocalProtocolError | NotFoundError):
        return 400
    return 503
