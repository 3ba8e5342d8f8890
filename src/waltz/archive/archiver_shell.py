"""Runs the archiver: reads the log, writes objects, commits; one thing at a time.

Owns the waiting. What to do next is decided by `archiver.py`. All reading and writing is done by
workers' threads, with a pause between pieces if a rate is set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

from waltz.archive.archive import Archive, read_contents
from waltz.archive.archive_target import Target
from waltz.archive.archived_history import archived_history, expect_archived
from waltz.archive.archiver import (
    Archiver,
    Ask,
    Commit,
    Committed,
    Copied,
    Copy,
    Effect,
    Event,
    Failed,
    Merge,
    Merged,
    NotCopied,
    Open,
    Opened,
    RaceLost,
    StopAsked,
    Sweep,
    Swept,
    Told,
)
from waltz.archive.archiver_metrics import ArchiverPartition, ArchiverState
from waltz.archive.cluster_log import ArchivedLog
from waltz.archive.commits import commit, create_archive, orphans, write_object
from waltz.archive.log_object import LogObject, ObjectWriter, record_offsets
from waltz.archive.manifest import Contents, Manifest
from waltz.arrays import np
from waltz.errors import (
    CorruptionError,
    NotFoundError,
    VersionConflictError,
    WaltzError,
)
from waltz.host import Host
from waltz.machine_shell import Mailbox, run
from waltz.operators.replicas_shell import Replica
from waltz.record import RecordBatch
from waltz.types import PartitionId, ReplicaId, TransactionId

T = TypeVar("T")

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 16
"""Events that wait for the machine: one of the effect under way, and a request to stop."""

COPIES_COMPARED_MAX: Final = 64
"""Copies that one run of records may be compared with."""


class ArchiverProcess:
    """Archives the log until it is stopped. Implements the methods of every kind of process."""

    def __init__(
        self,
        host: Host,
        open_log: Callable[[], ArchivedLog],
        target: Target,
        machine: Archiver,
        *,
        object_bytes: int,
        verify_replicas: int,
        bytes_per_second: int | None = None,
    ) -> None:
        """`verify_replicas`: the copies, besides the one that is read, that are compared before a
        commit, as far as there are that many; 0: records are read through the servers, and nothing
        is compared. `bytes_per_second` None: no limit."""
        self.machine = machine
        self._host = host
        self._open_log = open_log
        self._log: ArchivedLog | None = None
        self._target = target
        self._object_bytes = object_bytes
        self._verify_replicas = verify_replicas
        self._rate = bytes_per_second
        self._paid_until = 0.0
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, EVENTS_MAX)
        self._work: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._is_stopping = False
        self._object_count = 0
        self._byte_count = 0

    async def start(self) -> None:
        """Connect to the log, and open or make the archive.

        Raises ConfigurationError: the archive is another cluster's; and as `open_reader`.
        """
        self._log = await self._blocking(self._open_log)
        key = self._log.cluster_key
        archive = await self._blocking(lambda: create_archive(self._target, key))
        log.info(
            "archive_opened target=%s cluster=%s manifest=%d",
            self._target.url, key, archive.contents.number,
        )  # fmt: skip

    async def run(self) -> None:
        """Return once the machine has closed."""
        try:
            await run(self.machine, self._mailbox, self._host, self._perform)
        finally:
            self._done.set()

    async def stop(self) -> None:
        """Ask the machine to close, and return once it has; a commit under way is finished."""
        self._is_stopping = True
        self._mailbox.put(StopAsked())
        await self._done.wait()
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def state(self) -> ArchiverState:
        """Return what is known now, for metrics."""
        machine, now = self.machine, self._host.clock.now()
        contents = machine.contents
        known = {*machine.marks, *machine.troubles, *(() if contents is None else contents.files)}
        return ArchiverState(
            target=self._target.url,
            cluster_key="" if self._log is None else str(self._log.cluster_key),
            manifest=None if contents is None else contents.number,
            last_success_milliseconds=machine.committed_at,
            commits=machine.commits,
            races_lost=machine.races_lost,
            failures=machine.failures,
            objects=self._object_count,
            byte_count=self._byte_count,
            swept=machine.swept,
            trouble=machine.trouble,
            partitions=tuple(
                ArchiverPartition(
                    each,
                    None if contents is None else contents.end(each) - 1,
                    machine.marks.get(each),
                    machine.lag_seconds(each, now),
                    machine.troubles.get(each),
                    each in machine.differences,
                )
                for each in sorted(known)
            ),
        )

    # Effects

    def _perform(self, effect: Effect) -> None:
        self._work = asyncio.get_running_loop().create_task(self._carry_out(effect))

    async def _carry_out(self, effect: Effect) -> None:
        try:
            event = await self._outcome(effect)
        except WaltzError as error:
            log.warning("archiving_failed step=%s error=%s", type(effect).__name__.lower(), error)
            event = Failed(str(error))
        except Exception as error:
            log.exception("archiving_failed step=%s", type(effect).__name__.lower())
            event = Failed(repr(error))
        self._mailbox.put(event)

    async def _outcome(self, effect: Effect) -> Event:
        match effect:
            case Open(known):
                return Opened(await self._blocking(lambda: self._opened(known)))
            case Ask(with_nodes):
                return await self._blocking(lambda: self._told(with_nodes))
            case Copy():
                return await self._copied(effect)
            case Merge():
                return await self._blocking(lambda: self._merged(effect))
            case Commit():
                return await self._blocking(lambda: self._committed(effect))
            case Sweep(contents):
                wall = self._host.clock.wall_milliseconds()
                return await self._blocking(lambda: self._swept(contents, wall))

    def _opened(self, known: Contents | None) -> Contents:
        if known is None:
            return create_archive(self._target, self._the_log.cluster_key).contents
        return read_contents(self._target, known)

    @property
    def _the_log(self) -> ArchivedLog:
        assert self._log is not None, "started"
        return self._log

    def _told(self, with_nodes: bool) -> Told:
        marks: dict[PartitionId, TransactionId] = {}
        unknown: dict[PartitionId, str] = {}
        for number in range(self._the_log.partition_count):
            try:
                marks[PartitionId(number)] = self._the_log.mark(PartitionId(number))
            except WaltzError as error:
                log.warning("mark_unknown partition=%d error=%s", number, error)
                unknown[PartitionId(number)] = str(error)
        # Taken after the marks were told: by this time everything up to them was committed.
        wall = self._host.clock.wall_milliseconds()
        if (contents := self.machine.contents) is not None:
            histories = self._the_log.histories
            expect_archived(contents, histories)
            # What is archived from now on is of this history: the node comes with it.
            with_nodes |= archived_history(contents, histories.cluster_key) != histories.current
        return Told(marks, wall, self._the_log.nodes() if with_nodes else None, unknown)

    async def _copied(self, effect: Copy) -> Event:
        partition_id = effect.partition_id
        try:
            made, replicas = await self._made(effect)
            file = await self._blocking(lambda: write_object(self._target, made, self._unique()))
        except CopiesDifferError as error:
            log.error("copies_differ partition=%d difference=%s", partition_id, error)
            return NotCopied(partition_id, str(error), is_difference=True)
        except WaltzError as error:
            log.warning("partition_not_archived partition=%d error=%s", partition_id, error)
            return NotCopied(partition_id, str(error))
        self._object_count += 1
        self._byte_count += file.byte_count
        log.info(
            "object_written path=%s transactions=%d bytes=%d replicas=%s",
            file.path, file.end - file.first, file.byte_count, ",".join(replicas) or "-",
        )  # fmt: skip
        return Copied(file, replicas)

    async def _made(self, effect: Copy) -> tuple[LogObject, tuple[ReplicaId, ...]]:
        """Return an object of the records and the replicas that hold exactly these.

        Raises WaltzError: fewer copies than asked for can be compared; `CopiesDifferError`.
        """
        replicas: list[Replica] = []
        if self._verify_replicas:
            replicas = await self._blocking(lambda: self._the_log.replicas(effect.partition_id))
            if not replicas:
                raise NotFoundError(
                    f"no replica of partition {effect.partition_id} is known to equal the log"
                )
        # Another one is read first each time, so that all are read in the end.
        turn = self._object_count % len(replicas) if replicas else 0
        replicas = replicas[turn:] + replicas[:turn]
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
        writer = ObjectWriter(self._the_log.cluster_key, effect.partition_id, effect.first)
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
        batches = self._the_log.read(source, effect.partition_id, effect.first, effect.end)
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
                self._the_log.read(source, head.partition_id, head.first, head.end),
                self._the_log.read(other, head.partition_id, head.first, head.end),
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

    def _merged(self, effect: Merge) -> Merged:
        first, last = effect.files[0], effect.files[-1]
        contents = self.machine.contents
        assert contents is not None
        archive = Archive(self._target, contents)
        writer = ObjectWriter(contents.cluster_key, first.partition_id, first.first)
        for file in effect.files:
            for frame, stored, raw in archive.frames(file, file.first, file.end):
                writer.add_frame(frame, stored, batch_of(raw, writer.next))
        made = writer.finish()
        if writer.next != last.end:
            raise CorruptionError(f"{first.path} and the objects after it end at {writer.next}")
        whole = write_object(self._target, made, self._unique(), first.level + 1)
        log.info(
            "objects_joined path=%s objects=%d bytes=%d",
            whole.path, len(effect.files), whole.byte_count,
        )  # fmt: skip
        return Merged(whole, tuple(each.path for each in effect.files))

    def _committed(self, effect: Commit) -> Event:
        wall = self._host.clock.wall_milliseconds()
        change = Manifest(
            0,
            None,
            wall,
            self._unique(),
            files=effect.files,
            removed=dict.fromkeys(effect.removed, wall),
            time_marks=effect.time_marks,
            nodes=effect.nodes,
            verified=effect.verified,
        )
        try:
            after = commit(self._target, effect.before, change)
        except VersionConflictError as error:
            log.warning("race_lost error=%s", error)
            return RaceLost()
        log.info("archive_committed manifest=%d objects=%d", after.number, len(effect.files))
        return Committed(after, wall)

    def _swept(self, contents: Contents, wall: int) -> Swept:
        paths = tuple(orphans(self._target, contents, wall))
        for path in paths:
            self._target.delete(path)
            log.info("object_swept path=%s", path)
        return Swept(paths)

    def _unique(self) -> str:
        return self._host.random.uuid().hex[:16]

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


def batch_of(block: bytes, first: TransactionId) -> RecordBatch:
    """Return the batch of whole records with dense IDs from `first` on. Raises CorruptionError."""
    return RecordBatch(first, block, np.array(record_offsets(block, first), np.int64))


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
