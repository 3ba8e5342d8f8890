"""A bucket of an S3-compatible store, in a process's own memory, spoken to over HTTP, and a store
in front of it that behaves as stores do on a bad day."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of the store."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket_url(object_store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, reached with what the environment says."""
    import boto3

    name = f"bucket-{uuid4().hex[:12]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    boto3.client("s3", endpoint_url=object_store, region_name="us-east-1").create_bucket(
        Bucket=name
    )
    return f"s3://{name}/some/prefix"


class BadDay:
    """What the store in front does to requests; the counts are of requests, and go down."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.requests: list[str] = []
        """The methods of all requests, in their order."""
        self.throttled = 0
        """Requests that are refused with 503 SlowDown before they take effect."""
        self.unanswered_puts = 0
        """Puts that take effect, and whose connection ends without an answer."""
        self.halved_lists = 0
        """Listings of which half of the announced bytes come before the connection ends."""
        self.is_unconditional = False
        """Whether puts that must not replace an object do: the store ignores the header."""
        self.dropped_pages = False
        """Whether each listing that is continued fails for good from its second page on."""

    def take(self, what: str) -> bool:
        """Return whether this request is struck."""
        with self.lock:
            left: int = getattr(self, what)
            setattr(self, what, max(0, left - 1))
            return left > 0


class BadStore(BaseHTTPRequestHandler):
    """Passes requests on to the store, as the day allows."""

    protocol_version = "HTTP/1.1"
    day: ClassVar[BadDay]
    upstream: ClassVar[str]

    def __getattr__(self, name: str) -> Callable[[], None]:
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self.handle_any

    def handle_any(self) -> None:
        self.day.requests.append(self.command)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_list = self.command == "GET" and "list-type=2" in self.path
        is_dropped = is_list and self.day.dropped_pages and "continuation-token" in self.path
        if is_dropped or self.day.take("throttled"):
            self.answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        onward = http.client.HTTPConnection(self.upstream, timeout=30)
        headers = dict(self.headers)
        if self.day.is_unconditional:
            headers = {key: each for key, each in headers.items() if key.lower() != "if-none-match"}
        onward.request(self.command, self.path, body, headers)
        found = onward.getresponse()
        data = found.read()
        if self.command == "PUT" and self.day.take("unanswered_puts"):
            self.end_now()
        elif is_list and self.day.take("halved_lists"):
            self.answer(found.status, dict(found.headers), data, sent=data[: len(data) // 2])
            self.end_now()
        else:
            self.answer(found.status, dict(found.headers), data)

    def end_now(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(
        self, status: int, headers: dict[str, str], data: bytes, sent: bytes | None = None
    ) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if sent is None else sent)

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def bad_store(object_store: str) -> Iterator[tuple[str, BadDay]]:
    """Yield the address of a store that passes everything on, and its bad day."""
    bad = BadDay()

    class Handler(BadStore):
        day = bad
        upstream = urlsplit(object_store).netloc

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bad
        server.shutdown()
