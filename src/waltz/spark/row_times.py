"""Times of transactions in Spark: the options that name a time, and the columns that show times.

Records have no time; storage nodes note intervals. So a range that is given by times takes up every
transaction that may be of them, and a row shows two bounds, null where nothing was noted. No row
can have one exact time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION
from waltz.spark.offsets import Offsets
from waltz.spark.progress import Progress
from waltz.spark.schema import TIME_COLUMNS
from waltz.spark.stream_ending import doubtful
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz import LogTimes, TimeColumns, TransactionAt

log = logging.getLogger(__name__)

DIGITS_MAX: Final = 15
"""Digits of a time in milliseconds since 1970; each number of that length has a date."""

INSTANT: Final = timedelta(milliseconds=1)
"""The resolution of the times that are noted."""

REASONS_SHOWN: Final = 3
"""Storage nodes whose reasons for telling nothing are logged."""

NOTING_SECONDS_MAX: Final = 2.0
"""Seconds that a stream with an end waits for the times of transactions that it is to read; what
has none then may be of the time, and is read."""

NOTING_PAUSE: Final = 0.1
"""Seconds from one question for these times to the next."""

LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)
"""A time that every transaction with a time is older than."""

AskTimes: TypeAlias = "Callable[[PartitionId, int, int], TimeColumns]"
"""Returns the times of a partition's transactions from one to before another."""


def parse_timestamp(option: str, text: str) -> datetime:
    """Return the time in `text`: ISO 8601 with a zone, or milliseconds since 1970. Raises
    ConfigurationError, naming `option`."""
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        try:
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text))
        except OverflowError:
            pass
    else:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
        if found is not None and found.tzinfo is not None:
            return found.astimezone(UTC)
    raise ConfigurationError(
        f"{INVALID_OPTION} option {option} is {text!r:.100}; expected a time with its zone, such as"
        " 2026-11-24T10:00:00Z, or milliseconds since 1970"
    )


def offsets_from(
    times: LogTimes, moment: datetime, marks: Mapping[PartitionId, TransactionId]
) -> Offsets:
    """Return the first transaction of each partition that may have been committed at a time or
    later: every one before it is known to be older. Raises as `LogTimes.transactions_at`."""
    # One that was committed at that very millisecond belongs to the range.
    places = times.transactions_at(moment - INSTANT, marks)
    for partition_id, place in places.items():
        end = marks[partition_id] + 1 if place.later is None else place.later
        _say(partition_id, "startingTimestamp", place.first, end, place.problems)
    return Offsets("earliest", {each: place.first for each, place in places.items()})


def offsets_before(
    times: LogTimes, moment: datetime, marks: Mapping[PartitionId, TransactionId]
) -> Offsets:
    """Return, per partition, the first transaction that is known to have been committed at a time
    or later, or else the end of the log: everything that may be older is before it. Raises as
    `LogTimes.transactions_at`."""
    places = times.transactions_at(moment, marks)
    ends = {
        partition_id: TransactionId(marks[partition_id] + 1) if place.later is None else place.later
        for partition_id, place in places.items()
    }
    for partition_id, place in places.items():
        end = ends[partition_id]
        _say(partition_id, "endingTimestamp", place.first, end, place.problems)
    return Offsets("latest", dict(ends))


def ending_places(
    times: LogTimes,
    moment: datetime,
    progress: Progress,
    marks: Mapping[PartitionId, TransactionId],
    *,
    now: Callable[[], float],
    wait: Callable[[float], None],
) -> Mapping[PartitionId, TransactionAt]:
    """Return the place of a time in each of these partitions. While nobody knows of transactions
    that are to be read whether they are older, the nodes are asked again, for 2 s at most.

    `now` returns seconds of a clock that runs evenly, and `wait` waits for seconds. Raises as
    `LogTimes.transactions_at`; ConfigurationError: no time is noted of any transaction of a
    partition.
    """
    deadline = now() + NOTING_SECONDS_MAX
    places = times.transactions_at(moment, marks)
    while doubtful(places, progress, marks) and now() < deadline:
        wait(NOTING_PAUSE)
        places = times.transactions_at(moment, marks)
    in_doubt = doubtful(places, progress, marks)
    _expect_noted(times, {each: marks[each] for each in in_doubt if places[each].first == 0})
    for partition_id, place in places.items():
        first = max(place.first, progress.next_id(partition_id))
        end = marks[partition_id] + 1 if place.later is None else place.later
        _say(partition_id, "endingTimestamp", first, end, place.problems)
    return places


def _expect_noted(times: LogTimes, marks: Mapping[PartitionId, TransactionId]) -> None:
    """Raises ConfigurationError: of one of these partitions no transaction has a time, so that a
    stream would read on beyond its end, for ever."""
    noted = times.transactions_at(LAST_TIME, marks) if marks else {}
    for partition_id, place in noted.items():
        if place.first == 0:
            raise ConfigurationError(
                f"{INVALID_OPTION} option endingTimestamp needs times, and the storage nodes tell"
                f" none of partition {partition_id} ({_reasons(place.problems, 'none is noted')})."
                " Without them the stream would not end; use endingOffsets"
            )


def _reasons(problems: Mapping[Any, str], otherwise: str) -> str:
    return "; ".join(list(problems.values())[:REASONS_SHOWN]) or otherwise


def _say(
    partition_id: PartitionId, option: str, first: int, end: int, problems: Mapping[Any, str]
) -> None:
    """Log which transactions are read although nobody knows whether they are of the time."""
    if first < end:
        reasons = _reasons(problems, "their intervals span it")
        log.warning(
            "timestamp_uncertain partition=%d option=%s first=%d last=%d reason=%s",
            partition_id, option, first, end - 1, reasons,
        )  # fmt: skip


def expect_no_times(schema: Any) -> None:
    """Raises ConfigurationError: columns of `schema` show times, and no cluster is named."""
    asked = [name for name in schema.names if name in TIME_COLUMNS]
    if asked:
        raise ConfigurationError(
            f"{INVALID_OPTION} column {asked[0]} needs option cluster: only storage nodes know"
            " times"
        )


def without_times(schema: Any) -> Any:
    """Return the Arrow schema of a read whose rows `with_times` can complete: `schema` itself if it
    has no times."""
    if TIME_COLUMNS.keys().isdisjoint(schema.names):
        return schema
    fields = [field for field in schema if field.name not in TIME_COLUMNS]
    if "transaction_id" not in schema.names:
        fields.append(pa.field("transaction_id", pa.int64()))
    return pa.schema(fields)


def with_times(
    batches: Iterator[Any], schema: Any, partition_id: PartitionId, ask: AskTimes
) -> Iterator[Any]:
    """Yield `batches` of one partition in the columns of `schema`; the times of each batch are
    asked for together."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        if len(batch):
            ids = columns["transaction_id"].to_numpy()
            first = int(ids.min())
            told = ask(partition_id, first, int(ids.max()) + 1)
            columns["committed_after"] = _column(told.not_before[ids - first])
            columns["committed_before"] = _column(told.not_after[ids - first])
        else:
            columns |= {name: pa.array([], kind) for name, kind in TIME_COLUMNS.items()}
        arrays = [columns[name] for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(moments: Any) -> Any:
    is_unknown = np.isnat(moments)
    microseconds = moments.astype("datetime64[us]").astype(np.int64)
    return pa.array(microseconds, mask=is_unknown).cast(TIME_COLUMNS["committed_after"])
