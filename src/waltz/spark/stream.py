"""The stream reader: one process per query plans the offsets, tasks read by themselves.

Spark keeps the offsets, as `Progress` encodes them, in the query's checkpoint, and asks for the
tasks between two of them, after a failure the same two again. It accepts an offset that goes back
silently and would read rows twice, so no offset here goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import waltz
from waltz import Histories
from waltz.errors import WaltzError
from waltz.spark.any_archive import open_archive
from waltz.spark.byte_limit import admit_bytes, data_lengths
from waltz.spark.decoding import RowDecoding, decoded
from waltz.spark.followed_history import later_history
from waltz.spark.offsets import (
    TransactionRange,
    resolve_position,
    select_partitions,
    share_out,
    split_ranges,
    task_count_max,
)
from waltz.spark.parquet_archive import NOTHING_ARCHIVED, Contents
from waltz.spark.progress import NextIds, Progress, admit, available, is_beyond
from waltz.spark.row_times import ending_places, offsets_from
from waltz.spark.spark_options import ReadOptions
from waltz.spark.stream_ending import (
    StreamEnding,
    ending_with_ids,
    ending_with_time,
    kept_ends,
    unended,
)
from waltz.spark.tasks import (
    LogAccess,
    OpenReader,
    OpenTimes,
    as_task,
    coded_errors,
    pieces_of,
    read_task,
)
from waltz.spark.worker_garbage import GARBAGE
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz import LogReader, TransactionAt


class WaltzStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the columns of `schema`, an Arrow schema, as `options` say (PS-02).

    Keeps one connection to the cluster for planning while the query runs.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: Any,
        open_reader: OpenReader = waltz.open_reader,
        *,
        decoding: RowDecoding | None = None,
        open_times: OpenTimes = waltz.open_times,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`now` returns seconds of a clock that runs evenly, and `wait` waits for seconds."""
        self._now = now
        self._wait = wait
        self._options = options
        self._schema = schema
        self._decoding = decoding
        assert options.cluster is not None, "a stream has a cluster"
        self._access = LogAccess(options.cluster, options.tls, open_reader, open_times=open_times)
        self._log: LogReader | None = None
        self._histories: Histories | None = None
        self._marks_known: dict[PartitionId, TransactionId] = {}
        """The marks as they were asked for last."""
        self._contents: Contents | None = None
        """The content of the archive when it was looked at last; None: not yet."""
        self._waits_since: float | None = None
        """Since when transactions wait for others to make up a micro-batch."""
        self._initial: Progress | None = None
        self._target: NextIds | None = None
        """The end of the query, if it ends with the log as of its beginning."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Raises WaltzError, its text led by a code."""
        if self._initial is None:  # Spark asks twice, and the log may grow in between
            histories, marks = self._ask_marks()
            self._archived()
            cluster_key = histories.cluster_key
            starting = self._options.starting
            if (moment := self._options.starting_time) is not None:
                with self._access.opened_times(cluster_key) as times:
                    starting = offsets_from(times, moment, marks)
            starting.expect_partitions("startingOffsets", marks)
            first = {
                partition_id: resolve_position(
                    "startingOffsets",
                    starting,
                    partition_id,
                    mark,
                    fail_on_data_loss=self._options.fail_on_data_loss,
                )
                for partition_id, mark in marks.items()
            }
            beginning = Progress(cluster_key, first, later_history(histories))
            # Every partition is asked for its end, also one whose reading begins with its next
            # transaction: an end that is before the start is an error.
            ending = self._ending(replace(beginning, next_ids={}), histories, marks)
            if ending is not None and self._options.starting_time is not None:
                first = {
                    each: min(start, ending.kept.get(each, start)) for each, start in first.items()
                }
            if ending is not None:
                ending.expect_after(first)
            self._initial = _with_ending(replace(beginning, next_ids=first), ending)
        return self._initial.encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes. Raises WaltzError, its text led by a code."""
        options = self._options
        progress = Progress.decode(start)
        histories, marks = self._ask_marks()
        progress.expect_cluster(histories.cluster_key, self._access.cluster)
        progress.expect_history(histories)
        self._archived()
        ends = available(progress, _next_ids(marks), fail_on_data_loss=options.fail_on_data_loss)
        ending = self._ending(progress, histories, marks)
        is_last = self._target is not None
        if self._target is not None:
            ends = _before(progress, ends, self._target)
        if ending is not None:
            ends = _before(progress, ends, ending.bounds)
            is_last = is_last or ending.is_reached(ends)
        if self._waits(progress, ends, is_last=is_last):
            ends = {each: progress.next_id(each) for each in ends}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        admitted = admit(progress, ends, rows_max)
        if options.trigger_bytes_max is not None and not isinstance(limit, ReadAllAvailable):
            admitted = self._within_bytes(progress, admitted, options.trigger_bytes_max)
        # Partitions that are not read any more keep their place.
        reached = {**progress.next_ids, **admitted}
        end = Progress(
            histories.cluster_key,
            reached,
            later_history(histories),
            progress.task_count_max,
        )
        end = _with_ending(end, ending)
        if ranges := progress.ranges_to(end):
            end = replace(end, task_count_max=self._task_count_max(ranges))
        return end.encode()

    def _task_count_max(self, ranges: Sequence[TransactionRange]) -> int | None:
        """Return the most tasks of a micro-batch; None: it has no more than that anyway."""
        options = self._options
        rows = sum(each.row_count for each in ranges)
        most = options.trigger_tasks_max or task_count_max(rows, options.task_count_min)
        tasks = split_ranges(ranges, task_count_min=options.task_count_min)
        return most if len(tasks) > most else None

    def _ending(
        self, progress: Progress, histories: Histories, marks: Mapping[PartitionId, TransactionId]
    ) -> StreamEnding | None:
        """Return where the stream ends, as far as that is known; None: nowhere."""
        options = self._options
        if (moment := options.ending_time) is not None:
            kept = kept_ends(progress, moment, later_history(histories))
            asked = unended(kept, progress, marks)
            places = self._ending_places(moment, progress, asked)
            return ending_with_time(moment, kept, places, marks)
        if not options.has_end:
            return None
        options.ending.expect_partitions("endingOffsets", marks)
        return ending_with_ids(options.ending, progress, marks)

    def _ending_places(
        self, moment: datetime, progress: Progress, marks: Mapping[PartitionId, TransactionId]
    ) -> Mapping[PartitionId, TransactionAt]:
        if not marks:
            return {}
        with self._access.opened_times(progress.cluster_key) as times:
            return ending_places(times, moment, progress, marks, now=self._now, wait=self._wait)

    def _waits(self, progress: Progress, ends: NextIds, *, is_last: bool) -> bool:
        """Whether what there is waits for more, up to the longest delay. Nothing more comes to what
        `is_last`."""
        least = self._options.trigger_rows_min
        if least is None:
            return False
        rows = sum(end - progress.next_id(each) for each, end in ends.items())
        now = self._now()
        if not rows:
            self._waits_since = None
            return False
        if self._waits_since is None:
            self._waits_since = now
        waited = now - self._waits_since
        if rows >= least or is_last or waited >= self._options.trigger_delay:
            self._waits_since = None
            return False
        return True

    def _archived(self) -> Contents:
        """Return the content of the archive. Raises WaltzError, its text led by a code: the log is
        another one, or has less."""
        directory = self._options.archive
        if directory is None:
            return NOTHING_ARCHIVED
        if self._contents is None:
            if self._histories is None:
                self._ask_marks()
            assert self._histories is not None, "asked"
            archive = open_archive(directory)
            archive.expect_cluster(self._histories.cluster_key)
            contents = archive.contents()
            if is_beyond(contents.next_ids(), _next_ids(self._marks_known)):
                self._ask_marks()  # the archive has grown since
            contents.expect_in_log(self._marks_known, self._histories, directory)
            self._contents = contents
        return self._contents

    def _within_bytes(self, start: Progress, ends: NextIds, bytes_max: int) -> NextIds:
        """Return the end of a batch of at most `bytes_max` bytes. Only the log knows the sizes, so
        the admitted transactions are read here to count them."""

        def lengths_of(
            partition_id: PartitionId, first: TransactionId, end: TransactionId
        ) -> Iterator[Any]:
            assert self._log is not None, "its marks were asked for"
            return map(data_lengths, self._log.read(partition_id, first, end))

        with coded_errors(self._access.cluster):
            try:
                return admit_bytes(start, ends, bytes_max, lengths_of)
            except WaltzError:
                self.stop()
                raise

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the log as of the planning of the micro-batch, so that the query's
        progress shows how far it is behind."""
        if self._histories is None:
            self._ask_marks()
        histories = self._histories
        assert histories is not None, "asked"
        ends = _next_ids(self._marks_known)
        return Progress(histories.cluster_key, ends, later_history(histories)).encode()

    def prepareForTriggerAvailableNow(self) -> None:
        _, marks = self._ask_marks()
        self._target = _next_ids(marks)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks between two offsets, the same ones each time.

        Raises ConfigurationError: not offsets of one log.
        """
        first, last = Progress.decode(start), Progress.decode(end)
        last.expect_cluster(first.cluster_key, self._access.cluster)
        options = self._options
        ranges = split_ranges(first.ranges_to(last), task_count_min=options.task_count_min)
        rows = [each.row_count for each in ranges]
        history = last.history or last.cluster_key
        contents = self._archived() if ranges else NOTHING_ARCHIVED
        # What a task reads does not depend on how much is archived meanwhile.
        return [
            as_task(
                [
                    piece
                    for each in share
                    for piece in pieces_of(
                        each, contents, options.archive, last.cluster_key, history
                    )
                ]
            )
            for share in share_out(ranges, rows, last.task_count_max or len(ranges))
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        batches = read_task(
            self._access,
            self._schema,
            partition,
            rows_max=self._options.batch_rows_max,
            headers=self._options.headers,
        )
        return GARBAGE.sparing(decoded(self._decoding, batches))

    def stop(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without the connection, which never travels, and without what only planning needs."""
        planned = ("_log", "_histories", "_contents", "_initial", "_target")
        unshipped = dict.fromkeys(planned)
        return {**self.__dict__, **unshipped, "_marks_known": {}}

    def _ask_marks(self) -> tuple[Histories, dict[PartitionId, TransactionId]]:
        """Return the log's histories and the high-water marks of the partitions that are read."""
        options = self._options
        with coded_errors(self._access.cluster):
            try:
                if self._log is None:
                    access = self._access
                    self._log = access.open_reader(access.cluster, tls=access.tls)
                log = self._log
                selected = select_partitions(options.partitions, log.partition_count)
                marks = log.high_water_marks(selected)
                histories = log.histories
            except WaltzError:
                self.stop()  # the next question finds its own way
                raise
        if histories != self._histories:
            self._contents = None  # archived under another history, perhaps
        self._histories, self._marks_known = histories, marks
        return histories, marks


def _before(progress: Progress, ends: NextIds, bound: NextIds) -> NextIds:
    """Return `ends`, at most at `bound`, but never back."""
    return {
        each: TransactionId(max(progress.next_id(each), min(end, bound.get(each, 0))))
        for each, end in ends.items()
    }


def _with_ending(progress: Progress, ending: StreamEnding | None) -> Progress:
    """Return `progress` with what a checkpoint keeps of the end."""
    if ending is None:
        return progress
    return replace(progress, end=ending.kept, end_time=ending.time)


def _next_ids(marks: dict[PartitionId, TransactionId]) -> NextIds:
    return {each: TransactionId(mark + 1) for each, mark in marks.items()}
