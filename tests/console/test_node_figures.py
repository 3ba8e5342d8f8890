"""The figures of a storage node: numbers or nothing, whatever the node sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.console.states import node_json
from waltz.console.node_figures import NodeFigures, ReplicaFigures, figures_in, mean_drain
from waltz.storage.storage_metrics import NODE_METRICS, PARTITION_METRICS
from waltz.types import PartitionId

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


def test_the_figures_of_our_nodes_are_read() -> None:
    found = figures_in(node_json([0, 3]))
    assert found is not None
    assert (found.free_bytes, found.total_bytes) == (60 * 2**30, 100 * 2**30)
    assert found.damaged_records == 0
    assert found.partitions[PartitionId(3)].durable_id == 41
    assert found.drains() == (200, 0.8)


def test_the_names_are_those_of_the_metrics() -> None:
    names = {*(each.name for each in NODE_METRICS), *(each.name for each in PARTITION_METRICS)}
    assert {
        "disk_free_bytes", "disk_bytes", "disk_free_minimum_bytes", "scrubbed_bytes",
        "scrub_passes", "scrub_last_pass_seconds", "durable_transaction_id", "damaged_records",
    } <= names  # fmt: skip


@pytest.mark.parametrize("text", [None, "", "[]", "null", '{"node": 3}', "{" * 100_000, "1e999"])
def test_text_of_another_form_has_no_figures(text: str | None) -> None:
    assert figures_in(text) is None


@given(VALUES, VALUES)
def test_values_of_any_kind_are_numbers_or_unknown(value: Any, other: Any) -> None:
    names = [*(each.name for each in NODE_METRICS), *(each.name for each in PARTITION_METRICS)]
    entry = dict.fromkeys(names, value) | {"drain_seconds": other}
    text = json.dumps({"node": entry, "partitions": {"0": entry, "x": entry, "9" * 30: entry}})
    found = figures_in(text)
    assert found is not None
    assert set(found.partitions) == {0}
    assert found.free_bytes is None or abs(found.free_bytes) < 2**63
    mean_drain(found, found)


def test_the_mean_is_that_of_the_writes_between_two_answers() -> None:
    def after(drains: int | None, seconds: float | None) -> NodeFigures:
        replica = ReplicaFigures(drains=drains, drain_seconds=seconds)
        return NodeFigures(partitions={PartitionId(0): replica})

    assert mean_drain(after(100, 1.0), after(110, 1.5)) == pytest.approx(0.05)
    assert mean_drain(after(100, 1.0), after(100, 1.0)) is None, "no writes"
    assert mean_drain(after(100, 1.0), after(3, 0.1)) is None, "it was started anew"
    assert mean_drain(None, after(3, 0.1)) is None
    assert after(None, None).damaged_records is None
