"""HTTP for scrapers, probes and browsers, in the event loop of the process that they look at.

Owns the socket, the bounds on its connections, and whether they speak TLS. Knows nothing of the
meaning of the answers: a route is a function that returns one, and an application of Starlette may
be served in its place.
Import this module only if there is a port to serve: with its own imports it takes 65 ms and 6 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from waltz.errors import ConfigurationError
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.peer_log import PeerLog
from waltz.system.http_tokens import PROBE_PATHS, TokenGate
from waltz.system.tls import Tls
from waltz.system.tls_transport import TlsTransport
from waltz.system.tls_trouble import SLOW
from waltz.system.token_file import TokenFile
from waltz.types import PLAIN_HTTP, Address, HttpAccess

HTTP_CONNECTIONS_MAX: Final = 64
"""Connections of scrapers and probes to one process; a bound, so that files always have
descriptors. One more cuts the connection whose last answer is longest ago."""

HTTP_IDLE_SECONDS_MAX: Final = 30.0
"""A connection may stay this long without a request, at its start and between two."""

HTTP_REQUEST_SECONDS_MAX: Final = 5.0
"""From the first byte of a request to the end of its answer."""

HTTP_HEAD_BYTES_MAX: Final = 16 * 1024
"""Bytes of request line and headers. An application that takes a body bounds it by itself."""

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 1
NO_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

LEAST_QUALITY = 0.001
"""The lowest quality of a format that a client accepts; 0 means that it does not."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Negotiated:
    """A route with two answers: JSON for a client that asks for it or does not say what it
    accepts, text for any other."""

    text: Callable[[], Answer]
    json: Callable[[], Answer]

    def answer_to(self, accept: str | None) -> Answer:
        return self.json() if prefers_json(accept) else self.text()


Answering: TypeAlias = Callable[[], Answer] | Negotiated


def prefers_json(accept: str | None) -> bool:
    """Whether a client with this `Accept` header prefers JSON to text; None: it sent no header."""
    if accept is None:
        return True
    ranges = [_media_range(each) for each in accept.split(",")]

    def quality(kind: str) -> float:
        wanted = (kind, f"{kind.partition('/')[0]}/*", "*/*")
        found = {name: quality for name, quality in ranges if name in wanted}
        return next((found[name] for name in wanted if name in found), 0.0)

    is_named = any(name == "application/json" for name, _ in ranges)
    text = max(map(quality, ("text/plain", "application/openmetrics-text")))
    return is_named and quality("application/json") >= max(text, LEAST_QUALITY)


def _media_range(text: str) -> tuple[str, float]:
    """Return the media type and its quality: 0 if that cannot be read."""
    kind, *parameters = (each.strip() for each in text.lower().split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return kind, float(parameter[2:])
            except ValueError:
                return kind, 0.0
    return kind, 1.0


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds on connections: their number, and the seconds from the first byte of a request to
    the end of its answer."""

    connections_max: int = HTTP_CONNECTIONS_MAX
    request_seconds_max: float = HTTP_REQUEST_SECONDS_MAX


PROBES: Final = HttpBounds()


class HttpServer:
    """Serves GET requests for `routes`, a mapping of paths to answers, or an application."""

    def __init__(
        self,
        routes: Mapping[str, Answering] | ASGIApp,
        bounds: HttpBounds = PROBES,
        access: HttpAccess = PLAIN_HTTP,
    ) -> None:
        """Raises ConfigurationError: a file that `access` names cannot be used."""
        self._log = PeerLog(log, asyncio.get_running_loop)
        open_paths: Set[str] = frozenset()
        if isinstance(routes, Mapping):
            open_paths = PROBE_PATHS & routes.keys()
            found = [Route(path, _endpoint(answer)) for path, answer in routes.items()]
            self._application: ASGIApp = Starlette(routes=found)
        else:
            self._application = routes
        if access.tokens is not None:
            tokens = TokenFile(access.tokens)
            self._application = TokenGate(self._application, tokens, open_paths, self._log)
        self._security = None if access.tls is None else Tls(access.tls, judges_peers=False)
        self._bounds = bounds
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._address: Address | None = None

    @property
    def address(self) -> Address:
        """The address that it listens on, with the real port."""
        assert self._address is not None
        return self._address

    @property
    def url(self) -> str:
        """The URL of the root, without a path."""
        return f"{'http' if self._security is None else 'https'}://{self.address}"

    async def start(self, address: Address) -> None:
        """Begin to serve. Raises ConfigurationError: the port is in use, or the address is not this
        machine's."""
        listening = _listen(address)
        self._address = Address(address.host, listening.getsockname()[1])
        self._server = _Server(
            uvicorn.Config(
                self._application,
                http=_bounded(self._bounds, self._security, self._log),
                loop="none",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # of requests that cannot be read a connection tells by itself
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(HTTP_IDLE_SECONDS_MAX),
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                h11_max_incomplete_event_size=HTTP_HEAD_BYTES_MAX,
            )
        )
        self._task = asyncio.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        """Finish the answers under way and release the port. Idempotent."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        self._server = self._task = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: signals belong to the process that this server is a part of."""
        yield


class _BoundedConnection(H11Protocol):
    """A connection with what uvicorn lacks: bounds on the number of connections, on silence, on the
    time of a TLS handshake, of a request to arrive and of an answer to be read; and certificates
    that are renewed while the process runs."""

    bounds = PROBES
    security: Tls | None = None
    """None: the connection is plain."""
    log: PeerLog
    waiting_since = 0.0
    """The time at which the connection was made, or its last answer was given."""
    _timer: asyncio.TimerHandle | None = None
    _tls: TlsTransport | None = None
    _has_begun = False
    """Whether a part of a request has arrived that is not answered yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.security is not None:
            transport = self._tls = TlsTransport(transport, self.security)
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            others = cast(set[_BoundedConnection], self.connections) - {self}
            # Not the new one: silent connections would keep out those with a request.
            min(others, key=_BoundedConnection.standing).transport.abort()
        self._wait()
        if self._tls is not None:
            self._arm(HANDSHAKE_SECONDS_MAX, SLOW.format(seconds=HANDSHAKE_SECONDS_MAX))

    def standing(self) -> tuple[bool, float]:
        """The order in which connections give way: those without a finished handshake first, then
        the one that has waited longest."""
        return self._tls is None or self._tls.is_established, self.waiting_since

    def data_received(self, data: bytes) -> None:
        if self._tls is not None:
            self._decrypt(self._tls, data)
        else:
            self._take(data)

    def _decrypt(self, tls: TlsTransport, data: bytes) -> None:
        was_established = tls.is_established
        found, trouble = tls.received(data)
        if trouble:
            self._refuse(trouble)
            self._arm(HANDSHAKE_SECONDS_MAX)  # the peer may not take what it is told
            self.transport.close()
            return
        if tls.is_established and not was_established:
            self._wait()
        if found:
            self._take(found)
        if tls.has_ended:
            self.transport.close()

    def _take(self, data: bytes) -> None:
        if not self._has_begun:
            if not data[:2].isalpha():
                # No HTTP method begins like this. A client of ours waits for an answer: tell it.
                self.transport.write(NO_REQUEST)
                self.transport.close()
                return
            self._begin()
        super().data_received(data)

    def _begin(self) -> None:
        """Note that a part of a request has arrived."""
        self._has_begun = True
        self._arm(self.bounds.request_seconds_max)

    def send_400_response(self, msg: str) -> None:
        """Refuse the request that cannot be read, unless an answer has begun, and end the
        connection."""
        self._refuse("its request is not HTTP that can be read")
        if self.cycle is not None and not self.cycle.response_complete:
            # The head could be read, and is being answered: that answer has no place any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self._wait()
        if _has_two_lengths(self.headers):
            # What follows is a request to this side, and may be a body to a proxy on the way.
            self.transport.close()
        super().on_response_complete()
        # The copy that `trailing_data` makes is made of the part of a head at most.
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            self._begin()  # it came behind the request that was answered

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)

    def _wait(self) -> None:
        """Wait for the next request, and until the peer has read its answer."""
        self._has_begun = False
        self.waiting_since = self.loop.time()
        self._arm(HTTP_IDLE_SECONDS_MAX)

    def _arm(self, seconds: float, reason: str = "") -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._cut, reason)

    def _cut(self, reason: str) -> None:
        """End the connection, and log the reason if there is one."""
        if reason:
            self._refuse(reason)
        # Not `close`, which waits for ever if the peer does not read its answer.
        self.transport.abort()

    def _refuse(self, reason: str) -> None:
        peer = "unknown" if self.client is None else str(Address(*self.client))
        self.log.warning("connection_refused peer=%s reason=%s", peer, reason)


def _has_two_lengths(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a request says the length of its body in two ways."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}


def _bounded(bounds: HttpBounds, security: Tls | None, log: PeerLog) -> type[_BoundedConnection]:
    """Return the class of connections with these properties: uvicorn makes them by itself."""
    members = {"bounds": bounds, "security": security, "log": log}
    return type("_ConnectionWithBounds", (_BoundedConnection,), members)


def _endpoint(answer: Answering) -> Callable[[Request], Response]:
    async def endpoint(request: Request) -> Response:
        # In the loop, not in a thread as Starlette runs plain functions: a route must not wait.
        headers = {"cache-control": "no-store"}
        if isinstance(answer, Negotiated):
            given = answer.answer_to(request.headers.get("accept"))
            headers["vary"] = "accept"
        else:
            given = answer()
        headers["content-type"] = given.content_type
        return Response(given.body, given.status, headers)

    return endpoint  # type: ignore[return-value]


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            # Listen at once, not only when uvicorn does: two processes may bind one port.
            listening.listen()
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"HTTP port {address.port} on {address.host} is in use; stop the process that holds"
                " it or choose another port"
            ) from error
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot serve HTTP on {address}: {reason}") from error
    return listening
