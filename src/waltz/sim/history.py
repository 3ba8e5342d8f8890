"""What users of the log did and saw in one run: submits, endings, fed transactions.

Owns the record that the checkers judge. Knows nothing of how the log works.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from waltz.types import PartitionId, RequestId, TransactionId

_PAYLOAD: Final = struct.Struct(">4sIIIq")
_MAGIC: Final = b"WSIM"


@dataclass(frozen=True, slots=True)
class Payload:
    """The data of one transaction of a workload: which attempt of which context wrote what."""

    context: int
    attempt: int
    key: int
    value: int
    padding: bytes

    def encode(self) -> bytes:
        head = _PAYLOAD.pack(_MAGIC, self.context, self.attempt, self.key, self.value)
        return head + self.padding

    @classmethod
    def decode(cls, data: bytes) -> Payload | None:
        """Return the payload in `data`; None if no workload wrote it."""
        if len(data) < _PAYLOAD.size or data[:4] != _MAGIC:
            return None
        _, context, attempt, key, value = _PAYLOAD.unpack_from(data)
        return cls(context, attempt, key, value, data[_PAYLOAD.size :])


class Fed(NamedTuple):
    """One transaction as a client, or a disk, showed it."""

    transaction_id: TransactionId
    request_id: RequestId
    header: int
    data: bytes


@dataclass(slots=True)
class Submission:
    """One transaction context and all that became of it."""

    client: str
    partition_id: PartitionId
    written: list[tuple[int, bytes]] = field(default_factory=list)
    """Header and data of each attempt, the first one first."""
    endings: list[bool | str] = field(default_factory=list)
    """What its owner was told: committed, not committed, or the text of an exception."""


@dataclass(slots=True)
class History:
    """Everything that users saw."""

    submissions: dict[int, Submission] = field(default_factory=dict)
    """By context, in order of submission."""
    feeds: dict[str, dict[PartitionId, list[Fed]]] = field(default_factory=dict)
    """Per client and partition what was applied, in order."""
    ended_count: int = 0
    on_end: Callable[[], None] | None = None
    """Called after every ending."""

    def submit(self, client: str, partition_id: PartitionId) -> int:
        """Return the number of a new context."""
        context = len(self.submissions) + 1
        self.submissions[context] = Submission(client, partition_id)
        return context

    def feed(self, client: str, partition_id: PartitionId) -> list[Fed]:
        return self.feeds.setdefault(client, {}).setdefault(partition_id, [])

    def end(self, context: int, outcome: bool | str) -> None:
        self.submissions[context].endings.append(outcome)
        self.ended_count += 1
        if self.on_end is not None:
            self.on_end()
