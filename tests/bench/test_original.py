"""The Java original's figures, and the page that has those of Waltz next to them."""

from __future__ import annotations

import json
from dataclasses import replace

from bench.original import originals, page
from tests.bench.results import result, samples
from tests.clusters import ROOT
from waltz.bench.benchmark import report
from waltz.bench.results import Result, Round
from waltz.bench.workload import Workload, read_workloads


def measured(workload: Workload, *rounds: Round) -> Result:
    return replace(result(*rounds), workload=workload)


def test_the_page_is_what_is_printed_from_the_figures() -> None:
    file = ROOT / "bench" / "original.json"
    value = json.loads(file.read_text()) if file.exists() else None
    assert (ROOT / "docs" / "original.md").read_text() == page(value)


def test_every_workload_of_the_original_s_has_its_figures() -> None:
    names = [name for name in read_workloads() if name.startswith("original-")]
    assert sorted(originals()) == sorted(names)


def test_what_waltz_does_stands_beside_what_the_original_did() -> None:
    found = read_workloads()
    appends = replace(found["original-1-partition-1x64-100"], tls=True)
    feed = found["original-feed-headers-1-100"]
    memory = {"server": 150_000_000}
    latencies = samples(1.5, 2.0, 12.25)
    value = report(
        [
            measured(appends, Round(32_878, 1.0, latency=latencies, memory=memory)),
            measured(feed, Round(93_134, 2.0)),
            measured(found["submit-locks"], Round(7, 1.0, memory={"server": 10**9})),
        ],
        0.5,
    )
    text = page(json.loads(json.dumps(value)))
    assert "\n| 1-partition-1x64-100 | 16,439 | 3.3 | 9.9 | 32,878 | 2 | 12.2 | 2.0 |\n" in text
    assert "\n| feed-headers-1-100 | 93,134 | | | 46,567 | | | 0.5 |\n" in text
    assert "\n| 1-partition-1x64-512 | 14,754 | 3.6 | 12 | | | | |\n" in text
    assert "load 0.5 before" in text
    assert "1 of the workloads without TLS." in text
    assert "\n| server | 831 | 150 |\n| storage | 313 | |\n" in text


def test_without_figures_of_waltz_the_original_s_stand_alone() -> None:
    text = page(None)
    assert "has not been measured yet" in text
    assert "\n| 1-partition-1x64-100 | 16,439 | 3.3 | 9.9 | | | | |\n" in text
