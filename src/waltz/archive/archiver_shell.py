"""Runs the archiver: has records copied, writes objects, commits; one thing at a time.

Owns the waiting. What to do next is decided by `archiver.py`, and `log_copier_shell.py` reads the
log. All reading and writing is done by workers' threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
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
from waltz.archive.log_copier_shell import CopiesDifferError, LogCopier
from waltz.archive.log_object import ObjectWriter, record_offsets
from waltz.archive.manifest import Contents, Manifest
from waltz.arrays import np
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    VersionConflictError,
    WaltzError,
)
from waltz.host import Host
from waltz.machine_shell import Mailbox, run
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId

T = TypeVar("T")

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 16
"""Events that wait for the machine: one of the effect under way, and a request to stop."""


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
        self._copier: LogCopier | None = None
        self._new_copier = partial(
            LogCopier,
            host,
            object_bytes=object_bytes,
            verify_replicas=verify_replicas,
            bytes_per_second=bytes_per_second,
        )
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, EVENTS_MAX)
        self._work: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._object_count = 0
        self._byte_count = 0

    async def start(self) -> None:
        """Connect to the log, and open or make the archive.

        Raises ConfigurationError: the archive is another cluster's; and as `open_reader`.
        """
        self._log = await self._blocking(self._open_log)
        self._copier = self._new_copier(self._log)
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
        if self._copier is not None:
            self._copier.stop()
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
            assert self._copier is not None, "started"
            made, replicas = await self._copier.copy(effect, self._object_count)
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
        swept = []
        for path in tuple(orphans(self._target, contents, wall)):
            try:
                self._target.delete(path)
            except ConfigurationError as error:
                # It may be meant so that nothing can be deleted; nothing rests on it.
                log.warning("archiving_failed step=%s error=%s", "sweep", error)
                break
            log.info("object_swept path=%s", path)
            swept.append(path)
        return Swept(tuple(swept))

    def _unique(self) -> str:
        return self._host.random.uuid().hex[:16]

    async def _blocking(self, function: Callable[[], T]) -> T:
        return await self._host.workers.run_blocking(function)


def batch_of(block: bytes, first: TransactionId) -> RecordBatch:
    """Return the batch of whole records with dense IDs from `first` on. Raises CorruptionError."""
    return RecordBatch(first, block, np.array(record_offsets(block, first), np.int64))
