"""A post of a bridge: the body, the headers that name its content, and the signature.

Owns the format, which docs/bridge.md documents. Format 1; a receiver finds all of it signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

from waltz.types import RequestId

SIGNED_NAMES: Final = ("Timestamp", "Cluster", "History", "Partition", "First", "Last")
"""Headers, without `Waltz-`, whose values are signed in this order, before the body."""

SECRET_BYTES_MIN: Final = 16
"""A shorter secret is refused: it could be guessed from one signed post."""


JSON_BYTES_MAX: Final = 1024 * 1024
"""Larger data is base64 even if it is JSON: parsed, it may take fifty times its size in memory."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A transaction that is posted."""

    transaction_id: int
    header: int
    request_id: RequestId
    data: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a post, as its headers name it."""

    cluster_key: UUID
    history: UUID
    partition_id: int
    first: int
    last: int


def item(partition_id: int, posted: Posted, *, as_json: bool) -> bytes:
    """Return a transaction as a JSON object; with `as_json` data that is JSON is put in as such."""
    named = {
        "partition": partition_id,
        "transaction_id": posted.transaction_id,
        "header": posted.header,
        "request_id": posted.request_id._asdict(),
    }
    start = json.dumps(named, separators=(",", ":")).encode()[:-1]
    if as_json and len(posted.data) <= JSON_BYTES_MAX and is_json(posted.data):
        return start + b',"data":' + posted.data + b"}"
    return start + b',"data_base64":"' + base64.b64encode(posted.data) + b'"}'


def is_json(data: bytes) -> bool:
    """Return whether `data` is one JSON value in UTF-8, as RFC 8259 has it: neither NaN nor a
    value that is too deep, or a number too long, for a parser with common bounds."""
    try:
        json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def body(items: Sequence[bytes]) -> bytes:
    """Return the body of a post."""
    return b"[" + b",".join(items) + b"]"


def headers(
    content: Content, posted: bytes, secrets: Sequence[bytes], seconds: int
) -> list[tuple[str, str]]:
    """Return the headers for the body `posted`; `seconds` since 1970 is the time of the attempt.
    There is a signature for each secret, newest first."""
    values = (
        str(seconds),
        str(content.cluster_key),
        str(content.history),
        str(content.partition_id),
        str(content.first),
        str(content.last),
    )
    signed = ".".join(values).encode() + b"." + posted
    signatures = ",".join(
        "v1=" + hmac.new(each, signed, hashlib.sha256).hexdigest() for each in secrets
    )
    named = [(f"Waltz-{name}", value) for name, value in zip(SIGNED_NAMES, values, strict=True)]
    return [*named, ("Waltz-Signature", signatures)]
