"""Decides which failed operations are repeated: policies that an application can choose, or write.

Only operations that read are put to a policy. An append is executed again by its context, and by
nothing else: an append that is sent twice is in the log twice (IEP-82: "automatic retry of
operations that are not idempotent is dangerous").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from waltz.errors import WaltzError

RETRIES_MAX: Final = 16
"""Repetitions of an operation, unless the retry policy says otherwise (the referenced system's
limit)."""


class Operation(Enum):
    """Operations that can fail because a connection was lost, and can be repeated."""

    HIGH_WATER_MARK = "high-water mark"
    TRANSACTION_DATA = "transaction data"


READS = frozenset(Operation)
"""Operations that change nothing."""


class RetryPolicy(Protocol):
    """Decides which failed operations are repeated; any object with this method will do."""

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        """Return whether to repeat the operation. `attempt` counts from 0; called on a worker's
        thread."""
        ...


@dataclass(frozen=True, slots=True)
class NoRetries:
    """Repeats nothing: every failure goes to the caller."""

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class RetryReads:
    """Repeats operations that change nothing, at most `limit` times."""

    limit: int = RETRIES_MAX

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return operation in READS and attempt < self.limit


@dataclass(frozen=True, slots=True)
class RetryAll:
    """Repeats every operation that is put to a policy, at most `limit` times."""

    limit: int = RETRIES_MAX

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return attempt < self.limit
