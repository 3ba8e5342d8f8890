"""Makes objects of the log's records, and compares the replicas that hold them.

Owns the rate at which records are read, for all copies that are read at once: with a rate there is
a pause between pieces. Must not know what is archived already, nor where objects are written: it is
told which records to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

from waltz.archive.archiver import Copy
from waltz.archive.cluster_log import ArchivedLog
from waltz.archive.log_object import LogObject, ObjectWriter
from waltz.errors import CorruptionError, NotFoundError, WaltzError
from waltz.host import Host
from waltz.operators.replicas_shell import Replica
from waltz.record import RecordBatch
from waltz.types import ReplicaId, TransactionId

T = TypeVar("T")

COPIES_COMPARED_MAX: Final = 64
"""Copies that one run of records may be compared with."""


class LogCopier:
    """Reads runs of records until it is told to stop."""

    def __init__(
        self,
        host: Host,
        log: ArchivedLog,
        *,
        object_bytes: int,
        verify_replicas: int,
        bytes_per_second: int | None,
    ) -> None:
        """The settings are those of `ArchiverProcess`."""
        self._host = host
        self._log = log
        self._object_bytes = object_bytes
        self._verify_replicas = verify_replicas
        self._rate = bytes_per_second
        self._paid_until = 0.0
        self._is_stopping = False

    def stop(self) -> None:
        """Let what is read now fail with NotFoundError at the next records."""
        self._is_stopping = True

    async def copy(self, effect: Copy, turn: int) -> tuple[LogObject, tuple[ReplicaId, ...]]:
        """Return an object of the records and the replicas that hold exactly these. The number
        `turn`, another one each time, decides which replica is read first.

        Raises WaltzError: fewer copies than asked for can be compared; `CopiesDifferError`.
        """
        replicas: list[Replica] = []
        if self._verify_replicas:
            replicas = await self._blocking(lambda: self._log.replicas(effect.partition_id))
            if not replicas:
                raise NotFoundError(
                    f"no replica of partition {effect.partition_id} is known to equal the log"
                )
        # Another one is read first each time, so that all are read in the end.
        start = turn % len(replicas) if replicas else 0
        replicas = replicas[start:] + replicas[:start]
        wanted = max(0, min(self._verify_replicas, len(replicas) - 1, COPIES_COMPARED_MAX))
        errors: list[str] = []
        sources: list[Replica | None] = [*replicas] or [None]
        for source in sources:
            others = [each for each in replicas if each is not source][:COPIES_COMPARED_MAX]
            # One node's disk and way are waited for while another's are.
            made, read = await asyncio.gather(
                tried(self._read(source, effect)),
                asyncio.gather(*(tried(self._digest(each, effect)) for each in others[:wanted])),
            )
            if isinstance(made, LogObject):
                break
            errors.append(str(made))
        else:
            raise NotFoundError("; ".join(errors))
        if source is None:
            return made, ()
        equal = [source.replica_id]
        for place, other in enumerate(others):
            if len(equal) > wanted:
                break
            try:
                told = read[place] if place < wanted else await self._digest(other, effect)
                await self._expect_equal(made, source, other, told)
            except CopiesDifferError:
                raise
            except WaltzError as error:
                errors.append(str(error))
            else:
                equal.append(other.replica_id)
        if len(equal) <= wanted:
            raise NotFoundError(
                f"transactions {made.head.first} to {made.head.end - 1} of partition"
                f" {effect.partition_id} could be compared with {len(equal) - 1} other replicas;"
                f" {wanted} are asked for: {'; '.join(errors)}"
            )
        return made, tuple(equal)

    async def _read(self, source: Replica | None, effect: Copy) -> LogObject:
        writer = ObjectWriter(self._log.cluster_key, effect.partition_id, effect.first)
        await self._fill(writer, source, effect)
        return await self._blocking(writer.finish)

    async def _digest(self, source: Replica, effect: Copy) -> RecordsDigest:
        """Return what `_read` would make an object of, from another copy."""
        digest = RecordsDigest(effect.first)
        await self._fill(digest, source, effect)
        return digest

    async def _fill(
        self, taker: ObjectWriter | RecordsDigest, source: Replica | None, effect: Copy
    ) -> None:
        """Hand over the records for one object. Of equal copies these are the same."""
        batches = self._log.read(source, effect.partition_id, effect.first, effect.end)
        try:
            while (batch := await self._next(batches)) is not None:
                room = self._object_bytes - taker.raw_count
                taken = batch.head(taker.next, batch.count, room)
                is_full = taken.count < batch.count or len(taken.block) >= room
                if len(taken.block) <= room or taker.next == effect.first:
                    await self._blocking(partial(taker.add, taken))
                if is_full:
                    break
        finally:
            await self._end(batches)

    async def _next(self, batches: Iterator[RecordBatch]) -> RecordBatch | None:
        if self._is_stopping:
            raise NotFoundError("the archiver is told to stop")
        batch = await self._blocking(lambda: next(batches, None))
        if batch is not None and self._rate is not None:
            # One rate for all copies that are read at once.
            now = self._host.clock.now()
            self._paid_until = max(self._paid_until, now) + len(batch.block) / self._rate
            await asyncio.sleep(self._paid_until - now)
        return batch

    async def _end(self, batches: Generator[RecordBatch, None, None]) -> None:
        with suppress(ValueError):  # told to stop: its thread is still in it, until the log closes
            await self._blocking(batches.close)

    async def _expect_equal(
        self,
        made: LogObject,
        source: Replica,
        other: Replica,
        told: RecordsDigest | WaltzError | OSError,
    ) -> None:
        """Raises `CopiesDifferError`: the other replica holds other records; WaltzError: it could
        not be asked."""
        if isinstance(told, WaltzError | OSError):
            raise told
        head = made.head
        if (told.next, told.digest) == (head.end, made.raw_digest):
            return
        where = await self._blocking(
            lambda: first_difference(
                self._log.read(source, head.partition_id, head.first, head.end),
                self._log.read(other, head.partition_id, head.first, head.end),
            )
        )
        if where is None:
            raise CorruptionError(
                f"partition {head.partition_id}: {source.replica_id} and {other.replica_id} hold"
                f" equal records when read again; before, one of them told others of transactions"
                f" {head.first} to {head.end - 1}"
            )
        raise CopiesDifferError(
            f"partition {head.partition_id}: {source.replica_id} and {other.replica_id} hold"
            f" different records from transaction {where} on; nothing of it is archived until they"
            " are equal"
        )

    async def _blocking(self, function: Callable[[], T]) -> T:
        return await self._host.workers.run_blocking(function)


async def tried(work: Awaitable[T]) -> T | WaltzError | OSError:
    """Return what comes of `work`, or why nothing does."""
    try:
        return await work
    except (WaltzError, OSError) as error:
        return error


class CopiesDifferError(CorruptionError):
    """Two copies of the log differ."""


class RecordsDigest:
    """Takes the records of one copy, as an `ObjectWriter` does, and keeps their SHA-256."""

    def __init__(self, first: TransactionId) -> None:
        self.next = first
        self.raw_count = 0
        self._digest = sha256()

    def add(self, batch: RecordBatch) -> None:
        """Take the next records. They must begin where the last ones have ended."""
        assert batch.first_transaction_id == self.next, "records are added in order"
        self._digest.update(batch.block)
        self.next = batch.next_transaction_id
        self.raw_count += len(batch.block)

    @property
    def digest(self) -> bytes:
        return self._digest.digest()


def first_difference(one: Iterator[RecordBatch], other: Iterator[RecordBatch]) -> int | None:
    """Return the first transaction whose records differ; None: there is none."""
    ahead: RecordBatch | None = next(other, None)
    for batch in one:
        position = batch.first_transaction_id
        while position < batch.next_transaction_id:
            if ahead is None:
                return position
            count = min(batch.next_transaction_id, ahead.next_transaction_id) - position
            mine, theirs = batch.slice(position, count), ahead.slice(position, count)
            if mine.block != theirs.block:
                for each, (left, right) in enumerate(
                    zip(mine.records(), theirs.records(), strict=True)
                ):
                    if left != right:
                        return position + each
                return position
            position = TransactionId(position + count)
            if position == ahead.next_transaction_id:
                ahead = next(other, None)
    return None
