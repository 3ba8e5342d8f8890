"""Users' streams as Prometheus sees them, by value."""

from __future__ import annotations

import json
from uuid import UUID

from waltz.spark.followed_metrics import FollowedPartition
from waltz.spark.observing import QUERIES_MAX, SourceProgress, StreamFigures, logs_among
from waltz.types import PartitionId, TransactionId

KEY = str(UUID(int=7))
P = PartitionId(0)


def offset(next_id: int) -> str:
    return json.dumps({"cluster": KEY, "0": next_id})


def at(next_id: int, rows: int, logged: int | None, place: int = 0) -> SourceProgress:
    ends = None if logged is None else {P: TransactionId(logged)}
    return SourceProgress(place, {P: TransactionId(next_id)}, ends, rows)


def test_logs_are_told_from_other_sources_by_their_offsets() -> None:
    kafka = json.dumps({"topic": {"0": 17}})
    sources: list[tuple[str | None, str | None, int]] = [
        (kafka, kafka, 3),
        (offset(5), offset(9), 5),
        ("17", "18", 1),
        (None, None, 0),
        ("{", "{", 1),
        (offset(6), None, -1),
        (json.dumps({"cluster": "none", "0": 1}), None, 1),
    ]
    assert logs_among(sources) == [at(5, 5, 9, place=1), at(6, 0, None, place=5)]


def test_a_query_is_counted_from_its_progress() -> None:
    now = [10.0]
    figures = StreamFigures(clock=lambda: now[0], wall=lambda: 1_700.0)
    figures.progressed("id", "orders", [at(5, 5, 9)], {"addBatch": 1500, "triggerExecution": 2000})
    now[0] = 14.0
    figures.progressed("id", "orders", [at(6, 1, 9), at(3, 2, None, place=1)], {"addBatch": 500})
    failed, (query,) = figures.read()
    assert (failed, query.name, query.batches, query.transactions) == (0, "orders", 2, 8)
    assert query.last_progress_milliseconds == 1_700_000
    assert {part: each.sum_seconds for part, each in query.seconds.items()} == {
        "addBatch": 2.0,
        "triggerExecution": 2.0,
    }
    assert query.partitions == {
        0: (FollowedPartition(P, 6, 9, 4.0),),
        1: (FollowedPartition(P, 3, None, None),),
    }


def test_a_query_without_a_log_is_left_out_and_one_that_has_ended_is_forgotten() -> None:
    figures = StreamFigures()
    figures.progressed("other", None, [], {"addBatch": 1})
    figures.ended("other", has_failed=True)
    assert figures.read() == (0, [])
    for query_id in ("one", "two"):
        figures.progressed(query_id, None, [at(5, 5, 9)], {})
    figures.ended("one", has_failed=False)
    failed, queries = figures.read()
    assert (failed, [each.name for each in queries]) == (0, ["two"])
    figures.ended("two", has_failed=True)
    assert figures.read() == (1, [])


def test_queries_are_bounded() -> None:
    figures = StreamFigures()
    for number in range(QUERIES_MAX + 1):
        figures.progressed(str(number), None, [at(5, 5, 9)], {})
    _, queries = figures.read()
    assert len(queries) == QUERIES_MAX
    assert "0" not in {each.name for each in queries}
