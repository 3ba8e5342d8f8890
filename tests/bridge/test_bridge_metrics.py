"""The figures of a bridge."""

from __future__ import annotations

from dataclasses import replace

from waltz.bridge.bridge_metrics import BridgeFigures, PartitionFigures, bridge_json
from waltz.cli.exposition import bridge_families

PARTITION = PartitionFigures(3, 17, None, "waiting for the log", 12, 2, 1, 0, None)
FIGURES = BridgeFigures("key", "https://hooks.example", (PARTITION,), None)


def test_a_bridge_is_healthy_if_nothing_waits_for_its_receiver() -> None:
    assert bridge_json(FIGURES)["healthy"]
    stuck = replace(PARTITION, refused_in_a_row=4, last_sent=20, trouble="answers 500")
    found = bridge_json(replace(FIGURES, partitions=(PARTITION, stuck)))
    assert not found["healthy"]
    assert found["partitions"][1]["trouble"] == "answers 500"
    assert (found["partitions"][1]["next"], found["partitions"][1]["last_sent"]) == (17, 20)
    assert not bridge_json(replace(FIGURES, trouble="no cluster"))["healthy"]
    assert not bridge_json(replace(FIGURES, partitions=()))["healthy"], "not known yet"


def test_each_partition_is_a_sample() -> None:
    families = {each.name: each for each in bridge_families(FIGURES, version="1")}
    (sample,) = families["waltz_bridge_transactions"].samples
    assert (sample.labels, sample.value) == ({"partition": "3"}, 12)
    assert families["waltz_bridge_healthy"].samples[0].value == 1
