"""A log made of values, which opens like one of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

from tests.spark.test_schema import columns
from waltz import LogReader, TransactionColumns
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import WaltzError
from waltz.types import PartitionId, TlsSettings, TransactionId

KEY = UUID(int=1)


class ListedLog:
    """A log reader over lists: `partitions` has the data of every transaction.

    `chunk` transactions come at a time. Opened is counted, so that leaks show.
    """

    def __init__(
        self,
        *partitions: list[bytes],
        chunk: int = 3,
        key: UUID = KEY,
        error: WaltzError | None = None,
    ) -> None:
        self._partitions = partitions
        self._chunk = chunk
        self.error = error
        self.cluster_key = key
        self.histories = Histories(key)
        self.partition_count = len(partitions)
        self.open_count = 0
        self.rows_read = self.bytes_read = 0
        self.questions = 0

    def restore(self, *firsts: int) -> UUID:
        """Let the log be restored from an archive; the history begins at these transactions."""
        restore_id = UUID(int=100 + len(self.histories.restores))
        begins = {PartitionId(n): TransactionId(first) for n, first in enumerate(firsts)}
        restore = LogHistory(restore_id, 1_790_812_800_000, begins)
        self.histories = Histories(self.cluster_key, (*self.histories.restores, restore))
        return restore_id

    def open(self, cluster: str, *, tls: TlsSettings) -> LogReader:
        assert tls == TlsSettings()
        assert cluster == "127.0.0.1:7100"
        self.open_count += 1
        return cast(LogReader, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.open_count -= 1

    def high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        if self.error is not None:
            raise self.error
        return TransactionId(len(self._partitions[partition_id]) - 1)

    def high_water_marks(
        self, partition_ids: Sequence[PartitionId]
    ) -> dict[PartitionId, TransactionId]:
        self.questions += 1
        return {each: self.high_water_mark(each) for each in partition_ids}

    def read(
        self,
        partition_id: PartitionId,
        first: TransactionId,
        end: TransactionId,
        *,
        wants_data: Callable[[Any], Any] | None = None,
        history: UUID | None = None,
    ) -> Iterator[TransactionColumns]:
        if self.error is not None:
            raise self.error
        if history is not None:
            self.histories.check(partition_id, history, end - 1)
        for start in range(first, end, self._chunk):
            run = columns(
                start, self._partitions[partition_id][start : min(end, start + self._chunk)]
            )
            wanted = [True] * len(run) if wants_data is None else wants_data(run.headers)
            data = [each if one else b"" for each, one in zip(run.data, wanted, strict=True)]
            self.rows_read += len(run)
            self.bytes_read += sum(map(len, data))
            yield replace(run, data=data)
