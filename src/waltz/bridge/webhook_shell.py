"""Posts to one webhook: HTTP/1.1 over a connection that stays open.

Owns the bounds on what a receiver may cost: time of an attempt, bytes of headers, bytes and time of
a body. The parser is h11. Redirects are answers like others: nothing is sent elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Final
from urllib.parse import urlsplit

import h11

from waltz.bridge.destination_shell import DeliveryFailedError

HEAD_BYTES_MAX: Final = 16 * 1024
"""Size of an answer's status line and headers."""

INTERIM_ANSWERS_MAX: Final = 8
"""Answers 1xx that a receiver may send before the answer itself."""

BODY_BYTES_MAX: Final = 64 * 1024
"""Bytes of an answer's body that are read, and thrown away, so that the connection can be used
again. A longer body ends the connection."""

BODY_SECONDS_MAX: Final = 2.0
"""Time for that; the answer is known by then."""

READ_BYTES: Final = 16 * 1024

EXCERPT_BYTES_MAX: Final = 200
"""Bytes of a refusal's body that are shown."""

IDLE_SECONDS_MAX: Final = 15.0
"""A connection that was unused for longer is not used again: receivers close theirs, too."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver's address. `tls` is None for plain HTTP; `timeout_seconds` bounds one attempt."""

    url: str
    tls: ssl.SSLContext | None
    timeout_seconds: float

    @property
    def origin(self) -> str:
        """Return scheme, host and port: the rest of an address may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer. `excerpt` is the start of the body of a refusal."""

    status: int
    retry_after: str | None
    excerpt: bytes

    @property
    def is_acceptance(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_for_content(self) -> bool:
        """Whether fewer transactions may be accepted: not so if the receiver has no time."""
        return 400 <= self.status < 500 and self.status not in (401, 403, 404, 407, 408, 425, 429)

    def text(self) -> str:
        if 300 <= self.status < 400:
            return (
                f"the receiver answers {self.status}, and redirects are not followed: name the"
                " address itself in bridge.url"
            )
        said = f": {ascii(self.excerpt)[2:-1]}" if self.excerpt else ""
        return f"the receiver answers {self.status}{said}"

    def retry_after_seconds(self, wall_seconds: float) -> float | None:
        """Return the pause that the receiver asks for: seconds, or until a date; None: none."""
        asked = self.retry_after
        if asked is None:
            return None
        if asked.isascii() and asked.isdecimal():
            return float(asked[:9])
        date = parsedate_tz(asked)
        if date is None:
            return None
        try:  # a date of HTTP without a zone is in universal time
            return max(0.0, mktime_tz((*date[:9], date[9] or 0)) - wall_seconds)
        except (ValueError, OverflowError, TypeError):
            return None


class PostFailedError(DeliveryFailedError):
    """There is no answer: whether the receiver has taken the post is unknown."""


class WebhookConnection:
    """Posts one after the other. Not for two tasks at a time."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        parts = urlsplit(webhook.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if webhook.tls is None else 443)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._host_header = parts.netloc
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._http: h11.Connection | None = None
        self._used_at = 0.0

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Return the answer to one POST. Raises PostFailedError: none came, or not in time."""
        head = await self._answered(headers, body)
        try:
            excerpt = await self._finish_body()
        except BaseException:
            self.close()
            raise
        named = {name: value.decode("latin-1") for name, value in head.headers}
        is_refusal = not 200 <= head.status_code < 300
        return Answer(head.status_code, named.get(b"retry-after"), excerpt if is_refusal else b"")

    async def _answered(self, headers: Sequence[tuple[str, str]], body: bytes) -> h11.Response:
        try:
            async with asyncio.timeout(self._webhook.timeout_seconds):
                return await self._post(headers, body)
        except TimeoutError as error:
            self.close()
            if error.errno is not None:  # the system has given the connection up
                raise PostFailedError(f"no answer: {error.strerror}") from error
            raise PostFailedError(
                f"no answer in {self._webhook.timeout_seconds:g} s (bridge.timeout)"
            ) from None
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise PostFailedError(
                f"the receiver's certificate is not accepted: {error.verify_message}; a private"
                " authority is named by bridge.caFile"
            ) from error
        except (OSError, EOFError, h11.ProtocolError) as error:
            self.close()
            raise PostFailedError(f"no answer: {str(error) or repr(error)!a}") from error
        except BaseException:
            self.close()  # half of a post may be on the way
            raise

    async def _post(self, headers: Sequence[tuple[str, str]], body: bytes) -> h11.Response:
        now = asyncio.get_running_loop().time()
        if self._writer is not None and now - self._used_at > IDLE_SECONDS_MAX:
            self.close()
        if self._writer is not None:
            # The receiver may have closed it meanwhile. To post twice is allowed.
            with suppress(OSError, EOFError, h11.ProtocolError):
                return await self._exchange(headers, body)
            self.close()
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._webhook.tls, limit=READ_BYTES
        )
        self._writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is sent
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        return await self._exchange(headers, body)

    async def _exchange(self, headers: Sequence[tuple[str, str]], body: bytes) -> h11.Response:
        assert self._http is not None
        assert self._writer is not None
        request = h11.Request(
            method="POST",
            target=self._target,
            headers=[
                ("Host", self._host_header),
                ("User-Agent", "waltz-bridge"),
                ("Accept", "*/*"),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                *headers,
            ],
        )
        for each in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(each) or b"")
        # Not first until all is sent: a receiver may refuse before, and close the connection.
        head = await self._head()
        if 200 <= head.status_code < 300:  # nobody keeps what was not sent
            await self._writer.drain()
        return head

    async def _head(self) -> h11.Response:
        for _ in range(INTERIM_ANSWERS_MAX + 1):
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("what comes is no answer")
        raise h11.RemoteProtocolError("too many answers 1xx")

    async def _finish_body(self) -> bytes:
        """Read the body as far as it may go. Its end leaves the connection open for the next post;
        what else becomes of it does not matter, for the answer is known."""
        assert self._http is not None
        excerpt, size, is_whole = b"", 0, False
        with suppress(TimeoutError, OSError, EOFError, h11.ProtocolError):
            async with asyncio.timeout(BODY_SECONDS_MAX):
                while size <= BODY_BYTES_MAX:
                    event = await self._event()
                    if not isinstance(event, h11.Data):
                        is_whole = isinstance(event, h11.EndOfMessage)
                        break
                    excerpt += bytes(event.data[: EXCERPT_BYTES_MAX - len(excerpt)])
                    # An empty piece of a body costs its sender bytes, too.
                    size += max(1, len(event.data))
        is_done = self._http.our_state is self._http.their_state is h11.DONE
        if is_whole and is_done and self._is_sent():
            self._http.start_next_cycle()
            self._used_at = asyncio.get_running_loop().time()
        else:
            self.close()
        return excerpt

    def _is_sent(self) -> bool:
        return self._writer is not None and not self._writer.transport.get_write_buffer_size()

    async def _event(self) -> object:
        assert self._http is not None
        assert self._reader is not None
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(READ_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise EOFError("the receiver has closed the connection")
            self._http.receive_data(data)
        return event

    def close(self) -> None:
        """Drop the connection. Idempotent."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = self._http = None
