"""A relay's figures: unknown is absent, and trouble is no health."""

from __future__ import annotations

import json
from dataclasses import replace

from waltz.outbox.relay_metrics import RELAY_METRICS, RelayFigures, relay_json

FIGURES = RelayFigures(
    "waltz_outbox", "key", "appends", True, 10, 2, 1, 0, 3, 4, 5, 6, 1_790_000_000_500, None
)


def readings(figures: RelayFigures) -> dict[str, float | None]:
    return {each.name: each.value(figures) for each in RELAY_METRICS}


def test_figures_are_those_of_the_relay() -> None:
    assert readings(FIGURES) == {
        "healthy": 1.0,
        "holder": 1.0,
        "rows": 10,
        "found_rows": 2,
        "parked_rows": 1,
        "vanished_rows": 0,
        "under_way_rows": 3,
        "waiting_rows": 4,
        "failures": 5,
        "take_overs": 6,
        "last_success_timestamp_seconds": 1_790_000_000.5,
    }


def test_what_is_unknown_is_absent() -> None:
    fresh = readings(replace(FIGURES, waiting=None, last_success_milliseconds=None))
    assert fresh["waiting_rows"] is fresh["last_success_timestamp_seconds"] is None


def test_trouble_is_told() -> None:
    in_trouble = replace(FIGURES, trouble="the database is away")
    assert not in_trouble.is_healthy
    assert "away" in json.dumps(relay_json(in_trouble))
    assert readings(in_trouble)["healthy"] == 0.0
