"""Lets the users of a Django project read what they have written, and bounds how long they wait.

Owns the header `Waltz-Token` on its way through a request, under WSGI and ASGI, and the answer to a
request that the log has not served in time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from waltz.client.consistency_token import ConsistencyToken, pauses
from waltz.client.token_middleware_shell import (
    GIVEN,
    HEADER,
    TOO_EARLY,
    WAITING_MAX,
    status_of,
    together,
)
from waltz.errors import OperationTimeoutError, WaltzError
from waltz.ext.django.django_callbacks import DjangoMarks
from waltz.ext.django.process_client import settings_of_waltz
from waltz.ext.unfinished import RETRY_AFTER, UNFINISHED, UNFINISHED_ERRORS, UNFINISHED_STATUS

logger = logging.getLogger(__name__)


class TokenMiddleware:
    """Makes requests wait for the tokens that they bring, and gives tokens with responses; in a
    project's `MIDDLEWARE` it is `"waltz.ext.django.middleware.TokenMiddleware"`.

    A request with the header `Waltz-Token` waits until the database `MARKS` has what the token
    names, at most `TOKEN_WAIT_SECONDS`; a thread of the server waits with it, unless the project
    runs under ASGI and all its middleware is asynchronous. A request whose view raises
    UnavailableError or ClientClosedError is answered with 503 and Retry-After: it may have taken
    effect.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        settings = settings_of_waltz()
        self._get_response = get_response
        self._marks = DjangoMarks(settings.marks)
        self._wait_seconds = settings.token_wait_seconds
        self._room = threading.BoundedSemaphore(WAITING_MAX)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._answer_later(request)
        text = request.headers.get(HEADER)
        brought = None
        if text is not None:
            try:
                brought = ConsistencyToken.parse(text)
                self._wait(brought)
            except WaltzError as error:
                return _refusal(error)
        return _with_token(request, self._get_response(request), brought)

    async def _answer_later(self, request: HttpRequest) -> HttpResponseBase:
        text = request.headers.get(HEADER)
        brought = None
        if text is not None:
            try:
                brought = ConsistencyToken.parse(text)
                await self._wait_on_loop(brought)
            except WaltzError as error:
                return _refusal(error)
        return _with_token(request, await self._get_response(request), brought)

    def _wait(self, token: ConsistencyToken) -> None:
        """Return once what `token` names has been applied. Raises OperationTimeoutError, and as
        `has_applied`."""
        if self._marks.has_applied(token):
            return
        if not self._room.acquire(blocking=False):
            raise OperationTimeoutError(f"{WAITING_MAX} requests wait already")
        try:
            self._marks.wait_until_applied(token, self._wait_seconds)
        finally:
            self._room.release()

    async def _wait_on_loop(self, token: ConsistencyToken) -> None:
        has_applied = sync_to_async(self._marks.has_applied)
        if await has_applied(token):
            return
        if not self._room.acquire(blocking=False):
            raise OperationTimeoutError(f"{WAITING_MAX} requests wait already")
        try:
            async with asyncio.timeout(self._wait_seconds):
                for pause in pauses():
                    await asyncio.sleep(pause)
                    if await has_applied(token):
                        return
        except TimeoutError:
            raise OperationTimeoutError("not applied in time") from None
        finally:
            self._room.release()

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer for a view with which the log has not done in time what it needs."""
        if not isinstance(error, UNFINISHED_ERRORS):
            return None
        logger.warning("request_unfinished path=%s error=%r", request.path, error)
        return _text(UNFINISHED, UNFINISHED_STATUS, RETRY_AFTER)


def _refusal(error: WaltzError) -> HttpResponse:
    if isinstance(error, OperationTimeoutError):
        return _text(TOO_EARLY.rstrip(), 425, RETRY_AFTER)
    return _text(str(error), status_of(error), {})


def _text(text: str, status: int, headers: Mapping[str, str]) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=status, headers=headers, content_type="text/plain")


def _with_token(
    request: HttpRequest, response: HttpResponseBase, brought: ConsistencyToken | None
) -> HttpResponseBase:
    given: ConsistencyToken | None = request.META.get(GIVEN)
    if given is not None:
        response.headers[HEADER] = str(together(brought, given))
    return response
