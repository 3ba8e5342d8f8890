"""Streams that end with a time: by value, then with a real session on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import waltz
from tests.clusters import wait_until
from tests.spark.listed_log import KEY, ListedLog
from waltz import LogTimes, TransactionAt
from waltz.errors import ConfigurationError
from waltz.spark.log_columns import log_schema
from waltz.spark.progress import Progress
from waltz.spark.schema import arrow_schema
from waltz.spark.spark_options import parse_options
from waltz.spark.stream import WaltzStreamReader
from waltz.spark.stream_ending import ending_with_time, kept_ends, unended
from waltz.types import PartitionId, ReplicaId, TlsSettings, TransactionId
from waltz.wall_time import milliseconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()
P0 = PartitionId(0)
END = 1_000
"""The ending time, in milliseconds since 1970."""
END_TIME = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


class Interval(NamedTuple):
    """The bounds of a transaction's time, in milliseconds since 1970."""

    low: int
    high: int


def place_of(noted: Sequence[Interval], count: int, moment: int) -> TransactionAt:
    """Return the place of a time among `count` transactions, of which the first are noted."""
    known = noted[:count]
    older = [n for n, each in enumerate(known) if each.high <= moment]
    newer = [n for n, each in enumerate(known) if each.low >= moment]
    first = older[-1] + 1 if older else 0
    later = TransactionId(max(first, newer[0])) if newer else None
    return TransactionAt(TransactionId(first), later, {ReplicaId("s1:1"): "away"})


class Committed(NamedTuple):
    """A transaction: the true time of its commit, and what its storage nodes note of the time."""

    moment: int
    noted: Interval


class Step(NamedTuple):
    """The log when a micro-batch is planned: its length, and how much of it has times."""

    length: int
    noted: int


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Committed], list[Step]]:
    """Transactions with ascending times, and a log that grows to all of them."""
    moments = sorted(draw(st.lists(st.integers(END - 9, END + 9), max_size=12)))
    around = st.integers(0, 4)
    committed = [
        Committed(each, Interval(each - 1 - draw(around), each + draw(around))) for each in moments
    ]
    lengths = sorted(draw(st.lists(st.integers(0, len(moments)), max_size=6)))
    steps = [Step(each, draw(st.integers(0, each))) for each in lengths]
    return committed, [*steps, Step(len(moments), len(moments))]


def planned(progress: Progress, intervals: Sequence[Interval], step: Step) -> Progress:
    """Return the end of a micro-batch that a query plans which was started from a checkpoint."""
    start = Progress.decode(json.loads(json.dumps(progress.encode())))
    marks = {P0: TransactionId(step.length - 1)}
    kept = kept_ends(start, END_TIME, None)
    places = {
        each: place_of(intervals[: step.noted], step.length, END)
        for each in unended(kept, start, marks)
    }
    ending = ending_with_time(END_TIME, kept, places, marks)
    reached = max(start.next_id(P0), min(step.length, ending.bounds[P0]))
    return Progress(KEY, {P0: TransactionId(reached)}, end=ending.kept, end_time=ending.time)


@given(histories())
def test_a_stream_has_all_that_may_be_older_and_more_only_while_nothing_is_noted(
    history: tuple[list[Committed], list[Step]],
) -> None:
    committed, steps = history
    progress = Progress(KEY, {P0: TransactionId(0)}, end={}, end_time=END_TIME)
    unnoted: set[int] = set()
    for step in steps:
        before, first = progress, progress.next_id(P0)
        progress = planned(before, [each.noted for each in committed], step)
        if before.end:
            assert progress.end == before.end, "an end that is known stays"
            assert progress.next_id(P0) <= max(first, before.end[P0])
        unnoted |= set(range(max(first, step.noted), progress.next_id(P0)))
    taken = set(range(progress.next_id(P0)))
    assert {n for n, each in enumerate(committed) if each.moment <= END} <= taken
    certainly_later = [n for n, each in enumerate(committed) if each.noted.low >= END]
    beyond = set(range(min(certainly_later, default=len(committed)), len(committed)))
    assert taken & beyond <= unnoted
    if all(step.noted == step.length for step in steps):
        assert taken == set(range(len(committed))) - beyond


class NotedTimes:
    """The times that storage nodes tell of a log: `intervals` has those of each partition."""

    def __init__(self, *intervals: list[Interval]) -> None:
        self.intervals = intervals
        self.later_notes: list[Interval] = []
        """The times of partition 0 that are noted while a query waits for them."""
        self.questions = 0
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.later_notes:
            self.intervals[0].append(self.later_notes.pop(0))

    def transactions_at(
        self, moment: datetime, marks: Mapping[PartitionId, TransactionId]
    ) -> Mapping[PartitionId, TransactionAt]:
        self.questions += 1
        milliseconds = milliseconds_of(moment)
        return {
            each: place_of(self.intervals[each], mark + 1, milliseconds)
            for each, mark in marks.items()
        }

    def open(self, cluster: str, *, tls: TlsSettings) -> LogTimes:
        return cast(LogTimes, self)

    def cluster_key(self) -> UUID:
        return KEY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def stream(log: ListedLog, times: NotedTimes, **options: str) -> WaltzStreamReader:
    given = {
        "cluster": "127.0.0.1:7100",
        "startingOffsets": "earliest",
        "endingTimestamp": str(END),
        **options,
    }
    return WaltzStreamReader(
        parse_options(given, is_stream=True),
        arrow_schema(log_schema()),
        log.open,
        open_times=times.open,
        now=lambda: times.now,
        wait=times.wait,
    )


def at(*next_ids: int, end: Mapping[str, int], time: int = END) -> dict[str, Any]:
    positions = {str(n): value for n, value in enumerate(next_ids)}
    return {
        "cluster": str(KEY),
        "end": dict(end),
        "endTime": f"1970-01-01T00:00:{time // 1000:02}+00:00",
        **positions,
    }


def exactly(*moments: int) -> list[Interval]:
    return [Interval(each - 1, each) for each in moments]


def test_a_stream_goes_on_until_a_later_transaction_is_known_and_keeps_its_end() -> None:
    data, other = [b"a"] * 2, [b"b"]
    log, times = ListedLog(data, other), NotedTimes(exactly(5, 6), exactly(7))
    source = stream(log, times)
    start = source.initialOffset()
    assert start == at(0, 0, end={})
    middle = source.latestOffset(start, ALL)
    assert middle == at(2, 1, end={})
    asked = times.questions
    assert source.latestOffset(middle, ALL) == middle
    assert times.questions == asked, "there was nothing to read"
    data += [b"a"] * 3
    times.intervals[0].extend(exactly(900, 1100, 1200))
    later = stream(log, times).latestOffset(middle, ALL)
    assert later == at(3, 1, end={"0": 3})
    other += [b"b"] * 2
    times.intervals[1].extend(exactly(999, 1100))
    times.intervals[0].clear()  # whatever is forgotten, the end is in the checkpoint
    end = stream(log, times).latestOffset(later, ALL)
    assert end == at(3, 2, end={"0": 3, "1": 2})
    data += [b"a"] * 9
    assert stream(log, times).latestOffset(end, ALL) == end


def test_an_end_is_decided_anew_for_another_time_and_by_another_history() -> None:
    log, times = ListedLog([b"a"] * 4), NotedTimes(exactly(5, 6, 1100, 2100))
    end = stream(log, times).latestOffset(at(0, end={}), ALL)
    assert end == at(2, end={"0": 2})
    day_after = stream(log, times, endingTimestamp="2000").latestOffset(end, ALL)
    assert day_after == at(3, end={"0": 3}, time=2000)
    by_ids = parse_options({"cluster": "127.0.0.1:7100", "endingOffsets": "latest"}, is_stream=True)
    reader = WaltzStreamReader(by_ids, arrow_schema(log_schema()), log.open)
    assert reader.latestOffset(day_after, ALL) == {"cluster": str(KEY), "0": 4, "end": {"0": 4}}
    restored = log.restore(2)
    times.intervals[0][2:] = exactly(800, 900)
    again = stream(log, times).latestOffset(end, ALL)
    assert again == {"history": str(restored), **at(4, end={})}


def test_what_is_not_noted_yet_is_waited_for_and_then_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, times = ListedLog([b"a"] * 4), NotedTimes(exactly(5))
    times.later_notes = exactly(6, 1100, 1200)
    end = stream(log, times).latestOffset(at(0, end={}), ALL)
    assert end == at(2, end={"0": 2})
    assert not caplog.records
    times = NotedTimes(exactly(5))
    assert stream(log, times).latestOffset(at(0, end={}), ALL) == at(4, end={})
    assert [each.getMessage() for each in caplog.records] == [
        "timestamp_uncertain partition=0 option=endingTimestamp first=1 last=3 reason=away"
    ]


def test_a_stream_of_a_log_whose_nodes_note_no_times_is_refused() -> None:
    refused = r"^WALTZ-1003 option endingTimestamp needs times.* of partition 1 \(away\)"
    source = stream(ListedLog([b"a"], [b"b"]), NotedTimes(exactly(5), []))
    with pytest.raises(ConfigurationError, match=refused):
        source.initialOffset()
    # A partition without transactions has no times either.
    empty = stream(ListedLog([b"a"], []), NotedTimes(exactly(5), []))
    assert empty.initialOffset() == at(0, 0, end={})


def test_a_stream_that_begins_after_its_end_is_refused_unless_both_are_times() -> None:
    log, times = ListedLog([b"a"] * 3), NotedTimes(exactly(5, 1100, 1200))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 partition 0 starts at 3, after"):
        stream(log, times, startingOffsets="latest").initialOffset()
    given = {"cluster": "127.0.0.1:7100", "startingTimestamp": "999", "endingTimestamp": "1000"}
    apart = NotedTimes([Interval(1100, 5), Interval(1100, 6), Interval(1200, 1200)])
    both = WaltzStreamReader(
        parse_options(given, is_stream=True),
        arrow_schema(log_schema()),
        log.open,
        open_times=apart.open,
    )
    assert both.initialOffset() == at(2, end={"0": 2})


@pytest.mark.parametrize("time", [True, 1000, None, "noon", "1970-01-01T00:00:01"])
def test_an_ending_time_without_a_zone_is_refused(time: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1006"):
        Progress.decode({**at(0, end={}), "endTime": time})
    assert Progress.decode(at(0, end={})).end_time == END_TIME


@pytest.mark.spark
@pytest.mark.processes
def test_a_query_ends_when_the_log_has_come_to_its_time(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """The end is in the future of the log: the query does not end early, ends with the first later
    transaction, and has the same end from its checkpoint."""
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        ids = [client.append(0, b"before") for _ in range(3)]
        wait_until(lambda: client.time_of(0, ids[-1]).not_after, "its time is not noted")
        last = client.time_of(0, ids[-1]).not_after
        assert last is not None
        moment = last + timedelta(seconds=4)

        def run() -> list[int]:
            source = spark.readStream.format("waltz").option("cluster", cluster)
            query = (
                source.option("partitions", "0")
                .option("startingOffsets", json.dumps({"0": ids[0]}))
                .option("endingTimestamp", moment.isoformat())
                .load()
                .select("transaction_id")
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "rows"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            rows = spark.read.parquet(str(tmp_path / "rows")).collect()
            return sorted(row.transaction_id for row in rows)

        def ends_in_checkpoint() -> dict[str, int]:
            written = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=number)
            offset: dict[str, dict[str, int]] = json.loads(written[-1].read_text().splitlines()[-1])
            return offset["end"]

        assert run() == ids
        assert ends_in_checkpoint() == {}, "no later transaction is known"
        later: list[int] = []

        def append_later() -> bool:
            """Whether a transaction is known to be later than the end; those before it may be."""
            later.append(client.append(0, b"perhaps later"))
            found = client.time_of(0, later[-1]).not_before
            return found is not None and found > moment

        wait_until(append_later, "no transaction comes after the end")
        first, end, _ = client.transaction_at(0, moment)
        assert end is not None
        assert ids[-1] < first <= end <= later[-1]
        found = run()
        assert found == list(range(ids[0], end))
        assert ends_in_checkpoint() == {"0": end}
        client.append(0, b"much later")
        assert run() == found
        assert ends_in_checkpoint() == {"0": end}


def number(path: Path) -> int:
    return int(path.name)
