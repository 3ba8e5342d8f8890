"""The protocol of the embedded coordinator and its clients: JSON objects, one per line.

    client  {"coordinator": 2, "session": ID or null}     once, first
    server  {"session": ID, "session_seconds": seconds}   another ID if that session has ended
    client  {"id": number, "call": name, ...arguments}    or {"forget": number}
    server  {"id": number, "result": value}               or {"id", "error": class, "text"}

Calls are those of `host.Coordinator`, and `ping` and `end`. Node data is in base64, null for none.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, Final

from waltz.errors import (
    CoordinationError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    RemoteProtocolError,
    VersionConflictError,
    WaltzError,
)
from waltz.limits import COORDINATOR_LINE_BYTES_MAX

PROTOCOL_VERSION: Final = 2

CALL_ERRORS: Final[dict[str, type[WaltzError]]] = {
    error.__name__: error
    for error in (
        NoNodeError,
        NodeExistsError,
        VersionConflictError,
        CoordinationError,
        LocalProtocolError,
    )
}
"""The errors that may answer a call, by name."""


class Lines:
    """Cuts arriving bytes into JSON objects, one per line."""

    def __init__(self, bytes_max: int = COORDINATOR_LINE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._rest = b""

    def receives_object(self, data: bytes) -> bool:
        """Whether the line that `data` begins or continues may be an object."""
        return (self._rest or data).startswith(b"{")

    def receive(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects that `data` completes; exhaust the iterator before the next call.

        Raises RemoteProtocolError, after the objects before it: a line too long, or not an object.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from map(parse_object, lines)
        if len(self._rest) > self.bytes_max:
            raise RemoteProtocolError(
                f"a line has more than {len(self._rest)} bytes; expected at most {self.bytes_max}"
            )


def parse_object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a line is not JSON: {line[:80]!r}") from error
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"a line is not a JSON object: {line[:80]!r}")
    return found


def line(**content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def data_to_json(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def data_from_json(text: object) -> bytes | None:
    if text is None:
        return None
    if isinstance(text, str):
        try:
            return b64decode(text, validate=True)
        except ValueError:
            pass
    raise RemoteProtocolError("the data of a node is not base64")
