"""Hands on only what is attested: transactions wait until a checkpoint covers and proves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, Protocol
from uuid import UUID

from waltz.errors import AttestationError
from waltz.host import Host
from waltz.reader.transaction_columns import TransactionColumns, columns_of_records, records_of
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId

ATTESTED_POLL_SECONDS: Final = 1.0
"""Time between two looks for a newer checkpoint while a reader follows."""


class Covered(Protocol):
    """The first transaction that no checkpoint covers, and what is known of the newest one."""

    @property
    def end(self) -> TransactionId: ...

    @property
    def said(self) -> str: ...


class Attestation(Protocol):
    """The proven part of a log; `waltz.AttestedLog` is one. Both methods read files, and are called
    by one thread at a time."""

    def covered(self, cluster_key: UUID, partition_id: PartitionId) -> Covered:
        """Look for a newer checkpoint. Raises AttestationError: it contradicts an earlier one."""
        ...

    def check(self, cluster_key: UUID, partition_id: PartitionId, records: RecordBatch) -> None:
        """Raises AttestationError: a record is not proven."""
        ...


class AttestedColumns:
    """Passes on the transactions of one cluster that `attestation` proves."""

    def __init__(
        self,
        host: Host,
        cluster_key: UUID,
        attestation: Attestation,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises what the reader has ended with, once it has."""
        self._host = host
        self._cluster_key = cluster_key
        self._attestation = attestation
        self._check_open = check_open
        self._one_at_a_time = asyncio.Lock()

    async def of(
        self,
        partition_id: PartitionId,
        found: AsyncGenerator[TransactionColumns, None],
        *,
        waits: bool,
    ) -> AsyncGenerator[TransactionColumns, None]:
        """Yield what is proven of `found`, in order.

        What no checkpoint covers is waited for with `waits`; else it raises AttestationError once
        all before it has been yielded. Raises AttestationError: a transaction is not the one that
        was attested, or a checkpoint contradicts an earlier one.
        """
        end = TransactionId(0)
        async with aclosing(found):
            async for columns in found:
                records = records_of(columns)
                while len(records):
                    first = records.first_transaction_id
                    if end < records.next_transaction_id:
                        end = await self._covered(partition_id, first, waits=waits)
                    head = records.slice(first, min(len(records), end - first))
                    await self._check(partition_id, head)
                    yield columns_of_records(head)
                    first = head.next_transaction_id
                    records = records.slice(first, records.next_transaction_id - first)

    async def _covered(
        self, partition_id: PartitionId, first: TransactionId, *, waits: bool
    ) -> TransactionId:
        """Return up to where transactions are covered, once `first` is."""
        while True:
            async with self._one_at_a_time:
                self._check_open()  # the workers end with the reader
                covered = await self._host.workers.run_blocking(
                    lambda: self._attestation.covered(self._cluster_key, partition_id)
                )
            if covered.end > first:
                return covered.end
            if not waits:
                raise AttestationError(
                    f"transaction {first} of partition {partition_id} is not attested:"
                    f" {covered.said}; read to before it, or wait: `waltz attest run` adds what is"
                    " archived"
                )
            await asyncio.sleep(ATTESTED_POLL_SECONDS)

    async def _check(self, partition_id: PartitionId, records: RecordBatch) -> None:
        async with self._one_at_a_time:
            self._check_open()
            await self._host.workers.run_blocking(
                lambda: self._attestation.check(self._cluster_key, partition_id, records)
            )
