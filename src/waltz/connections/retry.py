"""Which failed operations are repeated: policies that an application can choose from, or write.

Only operations that read are ever put to a policy. An append is executed again by its context, and
by nothing else: whoever sends it twice has it twice in the log (IEP-82: "automatic retry of
operations that are not idempotent is dangerous").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from waltz.errors import WaltzError

RETRIES_MAX: Final = 16
"""Of an operation, unless the retry policy says otherwise (the referenced system's limit)."""


class Operation(Enum):
    """What can fail because a connection was lost, and can be asked again."""

    HIGH_WATER_MARK = "high-water mark"
    TRANSACTION_DATA = "transaction data"


READS = frozenset(Operation)
"""Operations that change nothing."""


class RetryPolicy(Protocol):
    """Says which failed operations are repeated; whatever has this verb will do."""

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        """Return whether to ask again. `attempt` counts from 0; called on a worker's thread."""
        ...


@dataclass(frozen=True, slots=True)
class NoRetries:
    """Every failure is the caller's."""

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class RetryReads:
    """Asks again what changes nothing, `limit` times at most."""

    limit: int = RETRIES_MAX

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return operation in READS and attempt < self.limit


@dataclass(frozen=True, slots=True)
class RetryAll:
    """Asks again whatever is put to a policy, `limit` times at most."""

    limit: int = RETRIES_MAX

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        return attempt < self.limit
