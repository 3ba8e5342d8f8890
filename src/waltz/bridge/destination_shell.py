"""The two sides of a bridge: the frame that reads the log, and a destination that takes what it
reads.

Owns the methods that a destination has. The frame is `bridge_shell.py`; a webhook and Kafka are
destinations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import waltz
from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.delivery import Accepted, Refused
from waltz.errors import WaltzError
from waltz.types import PartitionId


class DeliveryFailedError(Exception):
    """There is no answer: whether the destination has taken what was sent is unknown, or it was not
    reached."""


class ReplacedError(WaltzError):
    """Another process delivers for this bridge now: this one has to end."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The log at the start of a bridge: its name, its current history, and the last transaction of
    each partition that the bridge serves."""

    cluster_key: UUID
    history: UUID
    marks: Mapping[PartitionId, int]


@dataclass(frozen=True, slots=True)
class Available:
    """Transactions of the log that have `first`, and the history of which they are."""

    columns: waltz.TransactionColumns
    first: int
    history: UUID


class Lane(Protocol):
    """The way of one partition into the destination. Not for two tasks at a time."""

    @property
    def place(self) -> PartitionProgress:
        """The progress, as far as it has come."""
        ...

    async def deliver(
        self, available: Available, count_max: int, sending: Callable[[int], None]
    ) -> Accepted | Refused:
        """Deliver at most `count_max` of the transactions, and return what came of it; `sending`
        is called with the last one once they are on the way. Raises DeliveryFailedError; OSError;
        WaltzError: no further attempt can help."""
        ...

    async def keep(self, to: PartitionProgress, *, is_due: bool) -> None:
        """Return once the progress is durable; if not `is_due`, perhaps before. Raises OSError;
        DeliveryFailedError."""
        ...

    async def close(self) -> None:
        """End the connection. Idempotent."""
        ...


class Destination(Protocol):
    """The receiving side of a bridge, which keeps the progress as well."""

    @property
    def receiver(self) -> str:
        """The destination's name, without anything secret."""
        ...

    @property
    def count_max(self) -> int:
        """Transactions that one delivery has at most."""
        ...

    @property
    def remedy(self) -> str:
        """Advice to an operator about progress that is not of this log."""
        ...

    async def start(self) -> None:
        """Make the progress this process's, if that can be done before the cluster is known. Raises
        DirectoryInUseError; OSError."""
        ...

    async def begin(self, ends: LogEnds, *, with_first: bool) -> Mapping[PartitionId, Lane]:
        """Return a lane per partition, whose progress is durable: a partition of no progress begins
        with its first transaction, or after its last one. Called again after a failure. Raises
        WaltzError; OSError; DeliveryFailedError."""
        ...

    async def flush(self) -> None:
        """Make durable what `keep` was not yet asked to. Raises OSError; DeliveryFailedError."""
        ...

    def end(self) -> None:
        """Let go of the progress. Idempotent."""
        ...
