"""Maintains tables that are derived from the log: takes in what is new, in batches.

The position in the log is in the database of the tables and changes with them, so a run needs no
checkpoint. The log is read in batches; Spark decodes and groups a batch, the target joins its rows
with the tables. Tables that are new in the definition, or others than before, are derived from the
past in a place aside, and join when they have just as much of the log as the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from waltz import Histories
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    VersionConflictError,
)
from waltz.spark.codes import DEFINITION_CHANGED, DIFFERENT, HISTORY_CHANGED, UNDECODABLE
from waltz.spark.followed_history import later_history
from waltz.spark.offsets import TransactionRange, select_partitions
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.definition_change import (
    DefinitionChange,
    change_between,
    expect_dropped,
    former_definition,
    part_of,
)
from waltz.spark.pipelines.frames import (
    CORRUPT,
    DIGEST,
    Grouped,
    decoded,
    float_columns,
    grouped,
    judged_layouts,
    kept,
    read_log,
)
from waltz.spark.pipelines.last_verify import remove_record
from waltz.spark.pipelines.object_store_tables import not_joined, not_rebuilt
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.row_changes import reaches
from waltz.spark.pipelines.schemas import CAUSE_CHARACTERS_MAX
from waltz.spark.pipelines.staging import (
    held_staging,
    is_staged,
    remove_staging,
    scratch_directory,
)
from waltz.spark.pipelines.table_store import (
    BLOCK_TRANSACTIONS,
    Batch,
    BlockFacts,
    Joining,
    Layout,
)
from waltz.spark.pipelines.tables import TablesDefinition
from waltz.spark.pipelines.target import Target
from waltz.spark.pipelines.watch import NOBODY, BatchSeen, Beginning, Watching
from waltz.spark.progress import (
    NextIds,
    PartitionLag,
    Progress,
    admit,
    available,
    is_beyond,
)
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNDECODABLE_MAX: Final = 10_000
"""Undecodable transactions of one batch that are put aside; more than these mean a wrong
definition."""


@dataclass(frozen=True, slots=True)
class TablesReport:
    """The result of a run."""

    transactions: int
    batches: int = 0
    undecodable: int = 0
    backfilled: tuple[str, ...] = ()
    """Tables that were derived from the past, and have joined the others."""

    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Log:
    """The log as this pipeline reads it: the marks of the moment it began, in batches.

    Raises HistoryChangedError while it is read: the log was restored meanwhile.
    """

    spark: SparkSession
    definition: PipelineDefinition
    histories: Histories
    ends: NextIds

    access: LogAccess

    is_bounded: bool = False
    """Whether the ends are those of other tables, which these are to have."""

    @property
    def cluster_key(self) -> UUID:
        return self.histories.cluster_key

    def as_of(self, marks: NextIds, watch: Watching) -> _Log:
        """Return the log with an end that is not before `marks`, which were read just now: another
        run may have taken in more since the log was asked."""
        if self.is_bounded or not is_beyond(marks, self.ends):
            return self
        histories, ends = _ends(self.access, self.definition)
        watch.log_has(ends)
        return replace(self, histories=histories, ends=ends)

    @property
    def tables(self) -> TablesDefinition:
        assert self.definition.tables is not None
        return self.definition.tables

    def batches(self, start: NextIds, planned: NextIds) -> Iterator[tuple[Progress, Progress]]:
        """Yield the beginning and the end of each batch; the first one ends where it was
        `planned`."""
        before = Progress(self.cluster_key, start)
        progress = Progress(self.cluster_key, {**start, **planned})
        ends = available(progress, self.ends, fail_on_data_loss=True)
        if planned:
            yield before, progress
        while any(progress.next_id(each) < end for each, end in ends.items()):
            reached = admit(progress, ends, self.definition.batch_transactions)
            after = Progress(self.cluster_key, {**progress.next_ids, **reached})
            yield progress, after
            progress = after

    @contextmanager
    def batch(self, start: Progress, end: Progress, layouts: Sequence[Layout]) -> Iterator[Batch]:
        """Yield the batch of the transactions from `start` to `end`. Raises as `batch_of`."""
        ranges, history = start.ranges_to(end), later_history(self.histories)
        frame = decoded(read_log(self.spark, self.definition, ranges), self.tables)
        with batch_of(frame, self.tables, layouts, ranges) as batch:
            yield replace(batch, history=history, confirm=self._expect_same_history)

    def _expect_same_history(self) -> None:
        # The frame asked the log which history it has when it was read.
        if _ends(self.access, self.definition)[0] != self.histories:
            raise HistoryChangedError(
                f"{HISTORY_CHANGED} the log was restored while it was read. The batch was dropped:"
                " run again"
            )


@contextmanager
def batch_of(
    frame: DataFrame,
    tables: TablesDefinition,
    layouts: Sequence[Layout],
    ranges: Sequence[TransactionRange],
) -> Iterator[Batch]:
    """Yield the batch of the decoded transactions in `frame`, which are `ranges`. The rows of its
    tables can be computed during the block.

    Raises CorruptionError: one of them cannot be decoded or kept; and Spark's errors.
    """
    with kept(frame.sparkSession, frame) as whole:
        blocks = _blocks(whole)
        count = sum(each.row_count for each in ranges)
        seen = sum(each.transactions for each in blocks)
        if seen != count:
            raise CorruptionError(f"{DIFFERENT} read {seen} transactions of {count}")
        undecodable, good = _undecodable(whole, tables)
        rows = [
            Grouped(each, grouped(good, each.definition, float_columns(each))) for each in layouts
        ]
        yield Batch(ranges, blocks, rows, undecodable)


def _undecodable(frame: DataFrame, tables: TablesDefinition) -> tuple[list[Any], DataFrame]:
    """Return the transactions that cannot be decoded, and a frame of the others."""
    from pyspark.sql import functions as f

    if CORRUPT not in frame.columns:
        return [], frame
    broken = frame.where(f.col(CORRUPT).isNotNull())
    columns = broken.select(
        "partition",
        "transaction_id",
        "header",
        "data",
        f.substring(f.col(CORRUPT), 1, CAUSE_CHARACTERS_MAX),
    )
    rows = [
        ((row[0], row[1], row[2], None if row[3] is None else bytes(row[3])), row[4])
        for row in columns.orderBy("partition", "transaction_id")
        .limit(UNDECODABLE_MAX + 1)
        .collect()
    ]
    found = [row for row, _ in rows]
    if found and (not tables.decoding.quarantine or len(found) > UNDECODABLE_MAX):
        partition_id, transaction_id, header, data = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise CorruptionError(
            f"{UNDECODABLE} partition {partition_id}, transaction {transaction_id}{more}, header"
            f" {header}: the data is {data!r:.80}; {_cause(tables, header, rows[0][1])}. Correct"
            " `decode`, or write `undecodable: quarantine` there"
        )
    return found, frame.where(f.col(CORRUPT).isNull())


def _cause(tables: TablesDefinition, header: int, corrupt: str) -> str:
    """Return why data could not be decoded, of which `corrupt` is its text if it should be JSON."""
    schemas = dict(tables.decoding.schemas)
    schema = schemas.get(header, schemas.get(None))
    if schema is not None and schema.format == "json":
        return "expected JSON with the fields of the definition"
    return corrupt


def _say_nothing(_: str) -> None:
    pass


def take_in(
    spark: SparkSession,
    access: LogAccess,
    definition: PipelineDefinition,
    watch: Watching = NOBODY,
    *,
    drop: Sequence[str] = (),
    tell: Callable[[str], None] = _say_nothing,
) -> TablesReport:
    """Take in what the log has beyond the tables, which are created if missing; `watch` is told
    of each batch.

    Tables that the target does not have, or has by another definition, are derived from the
    beginning of the log first; `tell` is told which. `drop` names all tables that the target has
    and the definition does not.

    Raises ConfigurationError: the definition is wrong, the tables are another's, or one of them is
    no longer in the definition and not to be dropped; NotFoundError:
    the log is shorter than what was taken in; HistoryChangedError: it was restored, and has others
    in the place of some; VersionConflictError: another run was faster;
    CorruptionError: data that cannot be decoded, a database that fails.
    """
    log = _open(spark, access, definition)
    watch.log_has(log.ends)
    with open_tables(definition, create=True) as store:
        layouts = judged_layouts(spark, log.tables)
        change = _joined(log, store, layouts, drop, tell, watch)
        report = _fill(log, store, layouts, watch)
        return replace(report, backfilled=change.derived, dropped=change.removed)


def _joined(
    log: _Log,
    store: Target,
    layouts: Sequence[Layout],
    drop: Sequence[str],
    tell: Callable[[str], None],
    watch: Watching,
) -> DefinitionChange:
    """Let the target have the tables of the definition, no more and no fewer; return what has
    changed. A target without any is left to `_fill`. Raises as `take_in`."""
    store.settle()
    before = store.definition()
    wanted = log.tables.fingerprint()
    if before is None:
        expect_dropped(DefinitionChange(), drop, store.place)
        return DefinitionChange()
    store.expect(log.cluster_key)
    store.expect_history(log.histories)
    change = change_between(before, wanted, store.place)
    expect_dropped(change, drop, store.place)
    is_whole = len(change.derived) == len(layouts)
    if change.is_strict and not is_whole:
        _expect_none_aside(store)
    if not change.reads_the_past and not change.removed:
        if change.is_rewritten:
            store.note_definition(before, wanted)
        if is_staged(log.definition.target):
            # Unless another run, by a later definition, derives tables there now.
            with (
                suppress(VersionConflictError),
                held_staging(log.definition.target) as path,
            ):
                remove_staging(path)
        return change
    if log.definition.url is not None:
        raise not_joined(log.definition.url)
    buckets = store.buckets()
    if store.planned():
        _finish_batch(log, store, before)
    marks, is_reread = dict(store.marks()), change.reads_the_past
    watch.begins(Beginning(log.cluster_key, marks, layouts, change.derived, is_reread))
    with held_staging(log.definition.target) as path:
        part = part_of(log.tables, change.derived)
        aside = replace(
            log,
            definition=replace(
                log.definition, target=path, buckets=buckets, changes=None, tables=part
            ),
        )
        joining = Joining(
            names=change.derived,
            dropped=change.removed,
            before=before,
            after=wanted,
            is_compared=change.reads_the_past,
            is_whole=is_whole,
        )
        wanted_layouts = [each for each in layouts if each.definition.name in change.derived]
        with _staging(aside, path, store.marks()) as fresh:
            while True:
                ends = dict(store.marks()) if change.reads_the_past else {}
                known = {} if fresh.definition() is None else fresh.marks()
                told = _Backfill(tell, change, ends, known)
                _fill(replace(aside, ends=ends, is_bounded=True), fresh, wanted_layouts, told)
                # Before, not after: a run may be killed in between.
                remove_record(log.definition.target)
                if store.adopt(fresh, joining):
                    break
        remove_staging(path)
    return change


class _Backfill:
    """Tells how far tables have come that are derived from the past."""

    def __init__(
        self,
        tell: Callable[[str], None],
        change: DefinitionChange,
        ends: NextIds,
        marks: Mapping[PartitionId, TransactionId],
    ) -> None:
        self._tell = tell
        self._total = sum(ends.values())
        if self._total > sum(marks.values()):
            resumed = f", resumed at {sum(marks.values()):,}" if marks else ""
            tell(f"{change}: reading {self._total:,} transactions of the past{resumed}")

    def log_has(self, ends: NextIds) -> None:
        """Do nothing: the end is that of the other tables."""

    def begins(self, beginning: Beginning) -> None:
        """Do nothing: the pass has told of it, with the marks of the other tables."""

    def took_in(self, batch: BatchSeen) -> None:
        self._tell(f"read {sum(batch.next_ids.values()):,} of {self._total:,} transactions")


@contextmanager
def _staging(aside: _Log, path: Path, marks: NextIds) -> Iterator[Target]:
    """Yield the tables at `path`, which are resumed if they are those of the definition, and not
    beyond the `marks` of the tables that they are to join: these may have been put back."""
    if path.exists():
        with open_tables(aside.definition, create=True) as store:
            is_ours = _is_of(store, aside, marks)
        if not is_ours:
            remove_staging(path)
    with open_tables(aside.definition, create=True) as store:
        yield store


def _is_of(store: Target, log: _Log, marks: NextIds) -> bool:
    """Return whether tables may be continued with the log and its definition, up to `marks`."""
    made_with = store.definition()
    if made_with is None:
        return True
    try:
        store.expect(log.cluster_key)
    except ConfigurationError:
        return False
    return made_with == log.tables.fingerprint() and reaches(marks, store.marks())


def _expect_none_aside(store: Target) -> None:
    for partition, transaction_id, *_ in store.undecodable_beyond({}):
        raise ConfigurationError(
            f"{DEFINITION_CHANGED} {store.place} has put aside partition {partition}, transaction"
            f" {transaction_id}, which cannot be decoded. Leave `undecodable: quarantine` in the"
            " definition, or correct `decode` and run `waltz pipeline rebuild`"
        )


def _finish_batch(log: _Log, store: Target, before: str) -> None:
    """Finish the batch that a run has begun with the definition `before`."""
    former = former_definition(before, log.tables, store.place)
    old = replace(
        log,
        definition=replace(log.definition, tables=former),
        ends={**store.marks(), **store.planned()},
        is_bounded=True,
    )
    _fill(old, store, judged_layouts(log.spark, former))


def rebuild(
    spark: SparkSession,
    access: LogAccess,
    definition: PipelineDefinition,
    watch: Watching = NOBODY,
) -> TablesReport:
    """Rebuild the tables from the whole log and replace the old ones at once; `watch` is told of
    each batch.

    Raises NotFoundError: there are none to replace; ConfigurationError: they are in an object
    store; VersionConflictError: another run derives some from the past; otherwise as `take_in`.
    """
    if definition.url is not None:
        raise not_rebuilt(definition.url)
    log = _open(spark, access, definition)
    with open_tables(definition, create=False) as store, _scratch(definition) as fresh:
        store.expect(log.cluster_key)
        layouts = judged_layouts(spark, log.tables)
        report = _fill(log, fresh, layouts, watch)
        with held_staging(definition.target) as path:
            # Before, not after: a rebuild may be killed in between.
            remove_record(definition.target)
            store.replace_by(fresh)
            remove_staging(path)
    if definition.changes is not None:  # they begin anew; if not here, then with the next run
        with open_tables(definition, create=False) as store:
            store.prepare(log.cluster_key, log.tables.fingerprint(), layouts)
    return report


def lag(access: LogAccess, definition: PipelineDefinition) -> list[PartitionLag]:
    """Return how far the tables are, per partition. Raises as `take_in`."""
    histories, ends = _ends(access, definition)
    cluster_key = histories.cluster_key
    with open_tables(definition, create=False) as store:
        store.expect(cluster_key)
        store.expect_history(histories)
        marks = store.marks()
    if is_beyond(marks, ends):
        _, ends = _ends(access, definition)
    available(Progress(cluster_key, marks), ends, fail_on_data_loss=True)
    return [PartitionLag(each, marks.get(each, 0), end) for each, end in ends.items()]


def _open(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> _Log:
    histories, ends = _ends(access, definition)
    return _Log(spark, definition, histories, ends, access)


def _ends(access: LogAccess, definition: PipelineDefinition) -> tuple[Histories, NextIds]:
    with access.opened() as log:
        selected = select_partitions(definition.partitions, log.partition_count)
        marks = log.high_water_marks(selected)
        return log.histories, {each: TransactionId(mark + 1) for each, mark in marks.items()}


def _fill(
    log: _Log, store: Target, layouts: Sequence[Layout], watch: Watching = NOBODY
) -> TablesReport:
    store.prepare(log.cluster_key, log.tables.fingerprint(), layouts)
    marks, planned = store.marks(), store.planned()
    log = log.as_of({**marks, **planned}, watch)
    store.expect_history(log.histories)
    transactions, batches, undecodable = 0, 0, 0
    for start, end in log.batches(marks, planned):
        if not batches:
            watch.begins(Beginning(log.cluster_key, start.next_ids, layouts))
        began = time.monotonic()
        with log.batch(start, end, layouts) as batch:
            read = time.monotonic()
            written = store.add(batch)
        seconds = {"read": read - began, "commit": time.monotonic() - read}
        count = sum(each.row_count for each in batch.ranges)
        aside = len(batch.undecodable)
        watch.took_in(BatchSeen(end.next_ids, count, aside, None, seconds, written))
        transactions += count
        undecodable += len(batch.undecodable)
        batches += 1
    return TablesReport(transactions, batches, undecodable)


@contextmanager
def _scratch(definition: PipelineDefinition) -> Iterator[Target]:
    """Yield tables that are gone after the block, on the same disk as those they are for."""
    with scratch_directory(definition.target) as directory:
        scratch = replace(definition, target=directory / "tables", changes=None)
        with open_tables(scratch, create=True) as store:
            yield store


def _blocks(frame: DataFrame) -> list[BlockFacts]:
    from pyspark.sql import functions as f

    block = f.expr(f"transaction_id div {BLOCK_TRANSACTIONS}")
    found = frame.groupBy("partition", block.alias("waltz_block")).agg(
        f.count("*"), f.sum(f.expr(DIGEST).cast("decimal(20,0)"))
    )
    return [
        BlockFacts(PartitionId(partition), block, count, int(digest))
        for partition, block, count, digest in found.collect()
    ]
