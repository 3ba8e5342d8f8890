"""Figures as families of Prometheus, by value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families

from waltz.figures import Durations, Family, Kind, Label, Metric, counter, gauge
from waltz.metrics import StateCollector, families
from waltz.types import PartitionId


@dataclass(frozen=True)
class State:
    partition_id: PartitionId
    size: float | None
    seconds: Durations


def scraped(families: Iterator[MetricFamily]) -> dict[str, float]:
    """What a scraper reads: the sample with its labels, to its value."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: families))
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


FIGURES: list[Metric[State]] = [
    gauge("bytes", "Its size.", lambda s: s.size),
    counter("looks", "Looks at it.", lambda s: 2),
]
FAMILIES: list[Family[State]] = [
    Family(
        "seconds",
        "Time.",
        Kind.HISTOGRAM,
        (Label("stage", "one"),),
        lambda s: [(("one",), s.seconds)],
    ),
    Family(
        "stage",
        "1 for it.",
        Kind.GAUGE,
        (Label("of", "two"),),
        lambda s: [(("a",), 1), (("b",), 0)],
    ),
    Family("turns", "Turns.", Kind.COUNTER, (Label("of", "one"),), lambda s: [(("a",), 7)]),
]


def test_a_figure_that_is_unknown_has_no_sample() -> None:
    known, unknown = (
        State(PartitionId(number), size, Durations()) for number, size in ((0, 5.0), (1, None))
    )
    assert scraped(families("x_", [], [([], known)], FIGURES)) == {
        "x_bytes[]": 5,
        "x_looks_total[]": 2,
    }
    assert scraped(families("x_", [], [([], unknown)], FIGURES)) == {"x_looks_total[]": 2}
    assert scraped(families("x_", ["partition"], [(["0"], known), (["1"], unknown)], FIGURES)) == {
        "x_bytes[('partition', '0')]": 5,
        "x_looks_total[('partition', '0')]": 2,
        "x_looks_total[('partition', '1')]": 2,
    }


def test_samples_of_one_name_differ_by_their_labels() -> None:
    state = State(PartitionId(3), None, Durations())
    state.seconds.add(0.3)
    found = scraped(families("x_", [], [([], state)], [], FAMILIES))
    assert found["x_stage[('of', 'a')]"] == 1
    assert found["x_stage[('of', 'b')]"] == 0
    assert found["x_turns_total[('of', 'a')]"] == 7
    assert found["x_seconds_count[('stage', 'one')]"] == 1
    assert found["x_seconds_bucket[('le', '0.25'), ('stage', 'one')]"] == 0
    assert found["x_seconds_bucket[('le', '0.5'), ('stage', 'one')]"] == 1
    of_partitions = scraped(families("x_", ["partition"], [(["3"], state)], [], FAMILIES))
    assert of_partitions["x_turns_total[('of', 'a'), ('partition', '3')]"] == 7
    assert of_partitions["x_seconds_sum[('partition', '3'), ('stage', 'one')]"] == 0.3
