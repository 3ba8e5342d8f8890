"""One entry of an audit log, and the line that says it.

Owns the form of lines. A line is a JSON object of ASCII characters, so nothing in a name or a
reason ends a line or acts on a terminal. Its last member, `chain`, is the SHA-256 over the chain of
the line before and all of this line in front of that member: no line can be changed, taken out or
put in without all later ones being written anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from waltz.wall_time import time_at

FIRST_CHAIN: Final = "0" * 64
"""The chain before the first line of all."""

TEXT_CHARACTERS_MAX: Final = 1_000
"""Characters of a reason or a name in a line; the rest is left out."""

LINE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a line: six texts, each character of which takes up to 6 bytes per half, fit."""


class AuditDecision(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    OBSERVED = "observed"
    """Allowed because the policy only observes."""
    TAKEN = "taken"
    """A policy is in force from now on."""
    NOT_TAKEN = "not taken"
    LOST = "lost"
    """There was no room for entries."""
    OPENED = "opened"
    """A process writes to the file from here on."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An event worth a line. `at` is in milliseconds since 1970; `count` is the number of requests,
    or of appends, that the line stands for. None: does not apply, or is unknown."""

    at: int
    decision: AuditDecision
    verb: str
    principal: str | None = None
    peer: str | None = None
    partition: int | None = None
    reason: str = ""
    connection: int | None = None
    request: str | None = None
    policy: int | None = None
    count: int = 1


class Position(NamedTuple):
    """The end of an audit log: the number of its last line, 0 for none, and that line's chain."""

    number: int
    chain: str


NOTHING_YET: Final = Position(0, FIRST_CHAIN)


def line_of(entry: AuditEntry, process: str, before: Position) -> tuple[bytes, Position]:
    """Return the line for the entry after `before`, and the position behind it."""
    moment = time_at(entry.at)
    fields: dict[str, object] = {
        "number": before.number + 1,
        "time": "" if moment is None else moment.isoformat(timespec="milliseconds"),
        "process": process,
        "decision": entry.decision.value,
        "verb": entry.verb,
        "principal": _cut(entry.principal),
        "peer": _cut(entry.peer),
        "partition": entry.partition,
        "reason": _cut(entry.reason),
        "connection": entry.connection,
        "request": _cut(entry.request),
        "policy": entry.policy,
        "count": entry.count,
    }
    if entry.decision is AuditDecision.OPENED:
        fields["previous"] = before.chain
    said = json.dumps(fields, separators=(",", ":"))[:-1].encode("ascii")
    chain = sha256(before.chain.encode() + said).hexdigest()
    return b'%s,"chain":"%s"}\n' % (said, chain.encode()), Position(before.number + 1, chain)


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:TEXT_CHARACTERS_MAX]


def position_of(line: bytes) -> Position:
    """Return the position behind a line. Raises ValueError: it is none of an audit log."""
    fields = json.loads(line)
    if not isinstance(fields, dict) or not line.endswith(b"}\n"):
        raise ValueError("no object")
    number, chain = fields.get("number"), fields.get("chain")
    if type(number) is not int or number < 1 or not isinstance(chain, str) or len(chain) != 64:
        raise ValueError("no number or chain")
    return Position(number, chain)
