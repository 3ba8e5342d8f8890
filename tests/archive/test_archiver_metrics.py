"""The archiver's figures: unknown is absent, and trouble is no health."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from waltz.archive.archiver_metrics import (
    ARCHIVER_METRICS,
    ARCHIVER_PARTITION_METRICS,
    ArchiverPartition,
    ArchiverState,
    health_json,
)
from waltz.figures import Metric
from waltz.types import PartitionId

S = TypeVar("S")

PARTITION = ArchiverPartition(PartitionId(0), 9, 12, 3.5, None, False)
STATE = ArchiverState(
    "file:///a", "key", 4, 1_790_000_000_500, 5, 1, 2, 7, 1_000, 3, None, (PARTITION,)
)


def readings(figures: Sequence[Metric[S]], state: S) -> dict[str, float | None]:
    return {each.name: each.value(state) for each in figures}


def test_figures_are_those_of_the_state() -> None:
    assert readings(ARCHIVER_METRICS, STATE) == {
        "healthy": 1.0,
        "manifest": 4,
        "last_success_timestamp_seconds": 1_790_000_000.5,
        "commits": 5,
        "races_lost": 1,
        "failures": 2,
        "objects": 7,
        "object_bytes": 1_000,
        "swept_objects": 3,
    }
    assert readings(ARCHIVER_PARTITION_METRICS, PARTITION) == {
        "archived_mark": 9,
        "lag_transactions": 3,
        "lag_seconds": 3.5,
        "copies_differ": 0.0,
    }


def test_what_is_unknown_is_absent() -> None:
    unknown = ArchiverPartition(PartitionId(0), None, None, None, None, False)
    found = readings(ARCHIVER_PARTITION_METRICS, unknown)
    assert [found[name] for name in ("archived_mark", "lag_transactions", "lag_seconds")] == [
        None
    ] * 3
    assert replace(unknown, archived=12, high_water_mark=9).lag_transactions == 0
    fresh = readings(
        ARCHIVER_METRICS, replace(STATE, manifest=None, last_success_milliseconds=None)
    )
    assert fresh["manifest"] is fresh["last_success_timestamp_seconds"] is None


def test_any_trouble_is_told() -> None:
    in_trouble = replace(STATE, partitions=(replace(PARTITION, trouble="away"),))
    for state in (in_trouble, replace(STATE, trouble="away")):
        assert not state.is_healthy
        assert "away" in json.dumps(health_json(state))
