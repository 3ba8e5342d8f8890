"""Applications for tests: callbacks and contexts that write down what they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.transaction import (
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.types import PartitionId, TransactionId


class Recorder(WaltzClientCallbacks):
    """Keeps its marks in memory; `failures` raise once per transaction ID."""

    def __init__(self, *, prefetch: bool = True, mark: int = -1) -> None:
        self.prefetch = prefetch
        self.start = mark
        self.marks: dict[int, TransactionId] = {}
        self.applied: dict[int, list[int]] = {}
        self.data: list[bytes] = []
        self.failures: dict[int, Exception] = {}
        self.uncaught: list[tuple[int, int, Exception]] = []
        self.wants: Callable[[Transaction], bool] = lambda _: True

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self.marks.get(partition_id, TransactionId(self.start))

    def apply_transaction(self, transaction: Transaction) -> None:
        number = transaction.transaction_id
        if number in self.failures:
            raise self.failures.pop(number)
        if self.wants(transaction):
            self.data.append(transaction.data)
        self.applied.setdefault(transaction.partition_id, []).append(number)
        self.marks[transaction.partition_id] = number

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.uncaught.append((partition_id, transaction_id, error))

    def has_applied(self, transaction_id: int) -> Callable[[], bool]:
        return lambda: self.marks.get(0) == transaction_id

    def applied_in(self, partition_id: int = 0) -> list[int]:
        return self.applied.get(partition_id, [])


class Note(TransactionContext):
    """Writes `text`; `story` is all it was told."""

    def __init__(
        self,
        text: str = "hello",
        *,
        partition: int = 0,
        lock: int | None = None,
        write: Any = True,
        timeout_seconds: float | None = None,
    ) -> None:
        self.text = text
        self.story: list[Any] = []
        self.timeout_seconds = timeout_seconds
        self._partition = partition
        self._lock = lock
        self._write = write

    def partition_id(self, partition_count: int) -> int:
        return self._partition

    def execute(self, builder: TransactionBuilder) -> bool:
        self.story.append("execute")
        if isinstance(self._write, Exception):
            raise self._write
        builder.set_header(len(self.text))
        builder.set_data(self.text.encode())
        if self._lock is not None:
            builder.set_write_locks([PartitionLocalLock("note", self._lock)])
            builder.set_read_locks([PartitionLocalLock("read", self._lock)])
        return bool(self._write)

    def on_completion(self, result: bool) -> None:
        self.story.append(result)

    def on_application(self) -> None:
        self.story.append("applied")

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        self.story.append(("lock", transaction_id))

    def on_expiration(self) -> None:
        self.story.append("expired")

    def on_exception(self, error: Exception) -> None:
        self.story.append(error)


WRITTEN = ["execute", True, "applied"]
