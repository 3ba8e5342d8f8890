"""Writes the rows of one task into the log: each once, whichever other attempts write too.

The task is an application of the log like any other. It follows the log from where the batch began;
its state is the set of its rows in the log; a row is executed on that state, and its append has a
write lock on the row's content. Of two simultaneous attempts, a zombie and its successor, only one
gets a row into the log: the other is refused, finds the row, and has nothing left to write. No
attempt is fenced, and none has to know whether an earlier one still lives.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import UUID

import numpy as np

import waltz
from waltz import ClusterNotes, WaltzClient, WaltzClientCallbacks
from waltz.errors import ConfigurationError, OperationTimeoutError, VersionConflictError
from waltz.spark.codes import ROWS_CHANGED
from waltz.spark.followed_history import later_history
from waltz.spark.sink_checkpoint import SinkCheckpoint, WrittenLog, expect_cluster, expect_log
from waltz.spark.sink_progress import (
    TaskIdentity,
    TaskProgress,
    current,
    ended,
    join,
    refused,
    tasks_beyond,
    with_task,
    without_tasks,
)
from waltz.spark.sink_rows import (
    SinkColumns,
    SinkRow,
    content_digest,
    has_locks,
    locked_rows,
    sink_columns,
)
from waltz.spark.sink_state import (
    PROGRESS_SECONDS_MAX,
    LoggedRows,
    RowContext,
    RowKey,
    no_progress,
)
from waltz.types import PartitionId, TlsSettings, TransactionId

PENDING_MAX: Final = 1_000
"""Rows of one partition of the log that are on their way."""

POLL_SECONDS: Final = 1.0


class OpenClient(Protocol):
    def __call__(
        self,
        cluster: str,
        callbacks: WaltzClientCallbacks,
        *,
        tls: TlsSettings | None = None,
        **options: Any,
    ) -> WaltzClient: ...


class OpenNotes(Protocol):
    def __call__(self, cluster: str, *, tls: TlsSettings | None = None) -> ClusterNotes: ...


@dataclass(frozen=True)
class SinkAccess:
    """Opens the log and the cluster's notes, wherever a task runs; `cluster_key` is the key of the
    only cluster that may be written to, None for any; `log` the log that a write has begun with."""

    cluster: str
    tls: TlsSettings = field(default_factory=TlsSettings)
    cluster_key: UUID | None = None
    log: WrittenLog | None = None
    open_client: OpenClient = waltz.open_client
    open_notes: OpenNotes = waltz.open_notes

    def bound(self, checkpoint: str | None = None, once: TaskIdentity | None = None) -> SinkAccess:
        """Return access to the log that answers now, and to no other; asked once per write or
        batch, before any task. `checkpoint` is a stream's, as Spark's option has it; `once` is any
        task of a write without a name, which begins.

        Raises HistoryChangedError: it is not the cluster of `cluster_key`, or not the log of the
        checkpoint; ConfigurationError; as `open_notes`.
        """
        with self.open_notes(self.cluster, tls=self.tls) as notes:
            histories = notes.read_histories()
            found = WrittenLog(histories.cluster_key, later_history(histories))
            self.expect(lambda: found.cluster_key)
            if once is not None:
                _open_tasks(notes, once)
        kept = None if checkpoint is None else SinkCheckpoint.at(checkpoint)
        if kept is not None:
            kept.bind(found, self.cluster)
        return replace(self, cluster_key=found.cluster_key, log=found)

    def expect(self, read: Callable[[], UUID]) -> None:
        """Check the cluster's key, as `read` returns it. Raises HistoryChangedError: it is another
        one."""
        if self.cluster_key is not None:
            expect_cluster(read(), self.cluster_key, self.cluster)

    def expect_log(self, notes: ClusterNotes) -> None:
        """Check that the log is the one that the write has begun with. Raises HistoryChangedError:
        another cluster, or the log was restored since."""
        if self.log is not None:
            histories = notes.read_histories()
            found = WrittenLog(histories.cluster_key, later_history(histories))
            expect_log(found, self.log, self.cluster)
        else:
            self.expect(notes.read_cluster_key)


@dataclass(frozen=True, slots=True)
class TaskRows:
    """The number of rows of a task that this attempt has appended, or found in the log."""

    appended: int
    found: int


def write_rows(access: SinkAccess, identity: TaskIdentity, batches: Iterable[Any]) -> TaskRows:
    """Write the rows of Arrow record batches and return once all of them are in the log.

    Raises HistoryChangedError: another cluster than that of `access` answers; ConfigurationError: a
    row that cannot be written, another content than an earlier attempt had, a later batch begun;
    VersionConflictError: a lock of a row was refused; UnavailableError: no progress for
    `PROGRESS_SECONDS_MAX`. Another attempt continues from there.
    """
    waiting = iter(batches)
    first = next((batch for batch in waiting if len(batch)), None)
    with access.open_notes(access.cluster, tls=access.tls) as notes:
        access.expect_log(notes)
        if first is None and current(notes.read(identity.note), identity) is None:
            return TaskRows(0, 0)
        state = LoggedRows(identity, notes)
        with access.open_client(
            access.cluster,
            state,
            tls=access.tls,
            partitions=(),
            max_concurrent_transactions=PENDING_MAX,
            mount_seconds_max=PROGRESS_SECONDS_MAX,
            keeps_client_id=True,  # the note of the attempt names it
        ) as client:
            access.expect(lambda: client.cluster_key)
            task = _Task(client, state)
            task.join()
            try:
                number = 0
                for batch in _all(first, waiting):
                    task.write(batch, number)
                    number += len(batch)
                return task.finish()
            except VersionConflictError:
                task.note_refusal()
                raise


def expect_all_tasks(access: SinkAccess, identity: TaskIdentity, task_count: int) -> None:
    """Check that no task beyond the first `task_count` has ever written rows of the batch.

    Raises ConfigurationError: there were more tasks when the batch was written before. Their rows
    were not compared with anything, and may be in the log twice now.
    """
    with access.open_notes(access.cluster, tls=access.tls) as notes:
        more = tasks_beyond(notes.read(identity.tasks_note), identity.batch, task_count)
    if more:
        raise ConfigurationError(
            f"{ROWS_CHANGED} batch {identity.batch} of {identity.write_id} has {task_count} tasks"
            f" now; an earlier attempt with task {more[-1]} wrote rows that may be in the log"
            " twice. A plan must have the same tasks each time"
        )


def end_once(access: SinkAccess, identity: TaskIdentity) -> None:
    """Delete the notes of a write without a name that has ended; `identity` is any of its tasks.
    Later attempts find that the write is over, and write nothing. Raises CoordinatorLostError."""
    with access.open_notes(access.cluster, tls=access.tls) as notes:
        tasks = _open_tasks(notes, identity)
        notes.remove(identity.tasks_note)
        for task in tasks_beyond(tasks, identity.batch, 0):
            notes.remove(replace(identity, task=task).note)


def _open_tasks(notes: ClusterNotes, identity: TaskIdentity) -> bytes:
    """Return the note of a write's tasks as it is now, and make it if there is none: a read might
    return an earlier state."""
    return notes.change(identity.tasks_note, lambda data: data or without_tasks(identity))


def _all(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not None:
        yield first
        yield from rest


class _Task:
    """One attempt, on the thread that Spark gives it."""

    def __init__(self, client: WaltzClient, state: LoggedRows) -> None:
        self.state = state
        self._client = client
        self._identity = state.identity
        self._wanted: Counter[RowKey] = Counter()
        self._active: set[int] = set()
        self._is_first = True
        self._has_contexts = False
        """Whether any row may be under way."""

    def join(self) -> None:
        """Make this attempt known before it writes. Raises as `sink_progress.join`."""
        client, state = self._client, self.state
        marks = self._marks()
        identity = self._identity

        def joined(data: bytes | None) -> bytes:
            # A change that may or may not have been made is repeated.
            found = current(data, identity)
            if data is not None and found is not None and client.client_id in found.clients:
                return data
            return join(data, identity, client.client_id, marks)

        progress = TaskProgress.decode(state.notes.change(identity.note, joined))
        # After it has joined: a write without a name that ends deletes the note of the tasks first,
        # so an attempt that still finds that note has joined those who wrote before.
        # Not found by a read, which might return an earlier state: the note is made if it is gone.
        if not state.notes.change(identity.tasks_note, lambda data: with_task(data, identity)):
            state.notes.remove(identity.tasks_note)
            state.notes.remove(identity.note)
            raise ended(identity)
        state.begin(client.client_id, progress)
        self._is_first = len(progress.clients) == 1
        if not self._is_first:
            # Rows may have changed places, too: all that earlier attempts wrote is looked at.
            self._follow(range(client.partition_count))

    def _marks(self) -> dict[PartitionId, TransactionId]:
        client = self._client
        return {
            PartitionId(each): client.get_high_water_mark(each)
            for each in range(client.partition_count)
        }

    def _follow(self, partition_ids: Iterable[int]) -> None:
        """Follow these partitions as well, and wait until their present content is known here."""
        new = set(partition_ids) - self._active
        if not new:
            return
        self._active |= new
        self._client.set_partitions(self._active)
        targets = {each: self._client.get_high_water_mark(each) for each in new}
        self._wait(
            lambda: all(
                self._client.client_high_water_mark(each) >= mark for each, mark in targets.items()
            ),
            "the log up to its end",
        )

    def write(self, batch: Any, first_row: int) -> None:
        """Write the rows of an Arrow record batch. Those without locks of their own are in the log
        then; the others may be under way. Raises as `write_rows`."""
        count = self._client.partition_count
        columns = sink_columns(batch, partition_count=count, first_row=first_row)
        if has_locks(batch):
            self._has_contexts = True
            for row in locked_rows(batch, columns, first_row=first_row):
                self._submit(row)
            return
        self._flush()  # rows come into the log in their order
        self._follow(np.unique(columns.partition_ids).tolist())
        for part in columns.of_each_partition():
            self._append(part)

    def _append(self, rows: SinkColumns) -> None:
        """Append rows for one partition, and return once all are in the log.

        They are sent as columns, each once for a state that was looked at; those that are not in
        the log then are looked for in the state that beat them.
        """
        client, state = self._client, self.state
        partition_id = int(rows.partition_ids[0])
        digests = [*map(content_digest, rows.headers.tolist(), rows.data)]
        locks = state.locks.hashes(digests)
        keys = [(partition_id, digest) for digest in digests]
        ranks = [self._rank(key) for key in keys]
        left = [*range(len(rows))]
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while left:
            state.check()
            # Sampled first: the state that is looked at is that of the mark, or newer.
            mark = client.client_high_water_mark(partition_id)
            now, later = state.choose(keys, ranks, left)
            if not now:
                return
            try:
                ids = client.append_many(
                    partition_id,
                    [rows.data[row] for row in now],
                    headers=rows.headers[now],
                    write_locks=locks[now],
                    locks_as_of=mark,
                    timeout_seconds=PROGRESS_SECONDS_MAX,
                ).tolist()
            except OperationTimeoutError:
                raise no_progress(self._identity, "rows on their way") from None
            written = [row for row, at in zip(now, ids, strict=True) if at != waltz.NOTHING]
            state.note_appended(keys[row] for row in written)
            if written:
                deadline = time.monotonic() + PROGRESS_SECONDS_MAX
            elif time.monotonic() >= deadline:
                raise no_progress(self._identity, "the log to take a row")
            left = sorted({*now, *later}.difference(written))

    def _rank(self, key: RowKey) -> int:
        """Return the number of rows with this key that have come before."""
        rank = self._wanted[key]
        self._wanted[key] = rank + 1
        return rank

    def _submit(self, row: SinkRow) -> None:
        """Submit one row. Raises the error that stopped the task, and as `submit`."""
        state = self.state
        state.check()
        self._follow([row.partition_id])
        key = row.partition_id, content_digest(row.header, row.data)
        rank = self._rank(key)
        if state.pending(key) is not None:
            # With two rows of one content under way it could not be told which one is in the log.
            self._wait(lambda: state.pending(key) is None, "a row with the same content")
        context = RowContext(row, key[1], rank, state)
        state.note_start(context)
        self._client.submit(context)

    def note_refusal(self) -> None:
        """Let the task's next attempts in this run fail, too, if a lock was refused: Spark tries
        again with newer marks, and that would pass."""
        text = self.state.refusal
        if text is not None:
            self.state.notes.change(
                self._identity.note, lambda data: refused(data, self._identity, text)
            )

    def finish(self) -> TaskRows:
        """Return once all rows are in the log. Raises as `write_rows`."""
        self._flush()
        self.state.check()
        other = self.state.first_other(self._wanted)
        if other is not None:
            raise ConfigurationError(
                f"{ROWS_CHANGED} {self._identity}: an earlier attempt wrote {other}, which is not"
                " among its rows now. A plan must give a task the same rows each time"
            )
        return TaskRows(self.state.appended, self.state.found)

    def _flush(self) -> None:
        """Return once no row is under way."""
        if not self._has_contexts:
            return

        def flushed() -> bool:
            with contextlib.suppress(OperationTimeoutError):
                self._client.flush(POLL_SECONDS)
                return True
            return self.state.error is not None

        self._wait(flushed, "rows on their way")
        self._has_contexts = False

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait as long as there is progress. Raises UnavailableError; the error that stopped the
        task."""
        state = self.state
        seen: tuple[object, ...] = ()
        deadline = 0.0
        while not condition():
            state.check()
            marks = [self._client.client_high_water_mark(each) for each in self._active]
            now = time.monotonic()
            if (*marks, state.appended, state.found) != seen:
                seen = (*marks, state.appended, state.found)
                deadline = now + PROGRESS_SECONDS_MAX
            if now >= deadline:
                raise no_progress(self._identity, what)
            with state.changed:
                state.changed.wait(0.02)
