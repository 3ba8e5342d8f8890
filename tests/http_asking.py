"""An HTTP client for tests, plain or with TLS: one connection per request."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterable
from email.message import Message
from typing import NamedTuple

from waltz.types import Address


class Reply(NamedTuple):
    status: int
    text: str
    headers: Message


def ask(
    address: Address,
    path: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    method: str = "GET",
    authorities: str | None = None,
    certificate: str | None = None,
) -> Reply:
    """Return the answer; with `authorities`, the path of a file of CAs, over TLS."""
    if authorities is None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    else:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate)
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=30, context=context
        )
    try:
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return Reply(answer.status, answer.read().decode(), answer.headers)
    finally:
        connection.close()


async def asked(
    address: Address,
    path: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    method: str = "GET",
    authorities: str | None = None,
    certificate: str | None = None,
) -> Reply:
    """As `ask`, next to a server in this loop."""

    def call() -> Reply:
        return ask(
            address,
            path,
            headers,
            method=method,
            authorities=authorities,
            certificate=certificate,
        )

    return await asyncio.to_thread(call)
