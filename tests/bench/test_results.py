"""Percentiles, medians and multiples."""

from __future__ import annotations

import json
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.results import result, samples
from waltz.bench.results import QUANTILES, Round, Samples, joined


def oracle(values: list[int], wanted: float) -> float:
    """The smallest value that at least that share of all does not exceed."""
    return sorted(values)[max(0, ceil(round(wanted * len(values), 9)) - 1)] / 1e9


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_percentiles_are_values_that_were_taken(values: list[int]) -> None:
    found = Samples(np.array(values, np.int64)).latency()
    assert found == {name: oracle(values, wanted) for name, wanted in QUANTILES.items()}


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 5)), min_size=1, max_size=50))
def test_an_entry_with_a_count_stands_for_so_many(pairs: list[tuple[int, int]]) -> None:
    times, counts = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    repeated = Samples(np.repeat(times, counts))
    assert Samples(times, counts).latency() == repeated.latency()


def test_parts_are_joined_with_their_counts() -> None:
    one = Samples(np.array([1, 2], np.int64), np.array([3, 4], np.int64))
    found = joined([one, one])
    assert found.counts is not None
    assert (found.nanoseconds.tolist(), found.counts.tolist()) == ([1, 2, 1, 2], [3, 4, 3, 4])
    assert joined([samples(1.0)]).counts is None


def test_figures_are_medians_of_the_rounds_and_multiples_of_the_machine() -> None:
    found = result(
        Round(100, 1.0, latency=samples(2.0, 4.0), processor={"client": 0.001, "server": 0.002}),
        Round(400, 2.0, latency=samples(3.0, 9.0), processor={"client": 0.004, "server": 0.008}),
        Round(900, 3.0, latency=samples(1.0, 2.0), processor={"client": 0.018, "server": 0.009}),
        data_bytes=500,
    )
    assert found.rate() == 200.0
    assert found.latency()["p50"] == 0.002
    assert found.processor_seconds() == pytest.approx(
        {"client": 0.00001, "server": 0.00002, "all": 0.00003}
    )
    assert found.multiples() == pytest.approx(
        {
            "transactions per write+sync": 0.2,
            "p50 per write+sync": 2.0,
            "p99 per write+sync": 4.0,
            "processor per pack+crc": 30.0,
            "processor per method call": 150.0,
        }
    )
    multiples = (
        "0.20 transactions per write+sync, 2.00 p50 per write+sync, 4.00 p99 per write+sync,"
        " 30.00 processor per pack+crc, 150.00 processor per method call"
    )
    assert found.lines() == [
        "some: 200/s [100..300], 0.1 MB/s",
        "  latency, ms: p50 2.00, p90 4.00, p99 4.00, p99.9 4.00, max 4.00",
        "  processor, us per transaction: client 10.0, server 20.0, all 30.0",
        f"  as multiples of this machine: {multiples}",
    ]


def test_what_consumers_saw_is_told_and_counts_as_the_latency() -> None:
    found = result(
        Round(
            10,
            1.0,
            latency=samples(1.0),
            tail=samples(5.0),
            lag=samples(4.0),
            from_commit=samples(4.5),
            drain_seconds=2.5,
            refused=1234,
            memory={"server": 50 * 2**20},
        )
    )
    kept = found.samples()
    assert kept is not None
    assert kept.nanoseconds.tolist() == [5_000_000]
    assert found.multiples()["p50 per write+sync"] == 5.0
    text = "\n".join(found.lines())
    assert "latency at the consumers, ms: p50 5.00" in text
    assert "consumers behind the writer, ms: p50 4.00" in text
    assert "commit to apply at the consumers, ms: p50 4.50" in text
    assert found.to_json()["commit_to_apply_seconds"]["p50"] == 0.0045
    assert "backlog drained after 2.50 s" in text
    assert "locks refused and tried again: 1,234" in text
    assert "memory of a process, MiB: server 50" in text


def test_all_of_it_can_be_written_as_json() -> None:
    whole = result(Round(10, 1.0, latency=samples(1.0), processor={"client": 0.1}))
    value = json.loads(json.dumps(whole.to_json()))
    assert value["rate"] == {"median": 10.0, "min": 10.0, "max": 10.0}
    assert value["latency_seconds"]["p99.9"] == 0.001
    assert value["workload"]["verb"] == "submit"
    assert value["calibration"]["sync_seconds"] == 0.001
    idle = result(Round(0, 1.0, memory={"server": 2**20}), verb="idle")
    assert idle.lines() == ["some:", "  memory of a process, MiB: server 1"]
    assert idle.to_json()["memory"] == {"server": 2**20}
