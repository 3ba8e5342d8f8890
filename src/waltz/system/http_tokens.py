"""Requests that need a bearer token, whatever application answers them.

Owns the paths that need none, and the ways in which a request shows its token.
"""

from __future__ import annotations

import base64
import binascii
import http
from collections.abc import Set
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waltz.peer_log import PeerLog
from waltz.system.token_file import TokenFile

PROBE_PATHS: Final = frozenset({"/live", "/health"})
"""Paths of a process that answer without a token, with their status alone: the probes of
orchestrators and load balancers have no place for a secret, and need no more than the status."""

CREDENTIALS_CHARACTERS_MAX: Final = 512
"""Characters of an Authorization header; a longer one is refused unread."""

ASKS: Final = 'Bearer realm="waltz", Basic realm="waltz", charset="UTF-8"'
"""The ways to show a token: `Basic` is for browsers, which ask their user for it."""

NO_TOKEN: Final = "no token"  # noqa: S105 -- a reason
UNREADABLE: Final = "its Authorization header cannot be read"
UNKNOWN: Final = "unknown token"

REFUSED: Final = (
    "This port asks for a token. Send it as `Authorization: Bearer TOKEN`, or as the password of"
    " its name. `waltz policy token NAME` makes one.\n"
)


class TokenGate:
    """An application that passes only requests with a token to another one."""

    def __init__(
        self, application: ASGIApp, tokens: TokenFile, open_paths: Set[str], log: PeerLog
    ) -> None:
        """`open_paths` are those of which anybody is told the status."""
        self._application = application
        self._open_paths = open_paths
        self._tokens = tokens
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Headers(scope=scope).getlist("authorization"))
        if not refused:
            await self._application(scope, receive, send)
            return
        if scope["path"] in self._open_paths:
            await self._application(scope, receive, _StatusOnly(send).send)
            return
        # Neither path nor header: either may have the token in it.
        peer = ":".join(map(str, scope.get("client") or ("unknown",)))
        self._log.warning("http_request_refused peer=%s reason=%s", peer, refused)
        headers = {"www-authenticate": ASKS, "cache-control": "no-store", "connection": "close"}
        await PlainTextResponse(REFUSED, 401, headers)(scope, receive, send)

    def _refused(self, shown: list[str]) -> str:
        """Return why a request with these Authorization headers is refused; empty: it is not."""
        if not shown:
            return NO_TOKEN
        token = shown_token(shown[0]) if len(shown) == 1 else None
        if token is None:
            return UNREADABLE
        name, text = token
        found = self._tokens.name_of(text)
        return "" if found is not None and name in (None, found) else UNKNOWN


class _StatusOnly:
    """The receiver of an answer, of which it passes on the status and nothing else."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._text = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._text = http.HTTPStatus(message["status"]).phrase.encode() + b"\n"
            headers = [
                (b"content-type", b"text/plain"),
                (b"cache-control", b"no-store"),
                (b"content-length", b"%d" % len(self._text)),
            ]
            await self._send({**message, "headers": headers})
        elif not message.get("more_body", False):
            await self._send({**message, "body": self._text})


def shown_token(header: str) -> tuple[str | None, str] | None:
    """Return the name, if the header has one, and the token in an Authorization header; None: it
    has no token."""
    if len(header) > CREDENTIALS_CHARACTERS_MAX:
        return None
    scheme, _, text = header.strip().partition(" ")
    text = text.strip()
    if not text:
        return None
    if scheme.lower() == "bearer":
        return None, text
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, token = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, token) if colon else None
