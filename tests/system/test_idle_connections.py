"""Connections to running processes that say nothing, or a byte a second.

`make bench-idle` has 10,000 of them, and looks at how fast others are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from bench.idle_connections import BEHAVIOURS, TARGETS, measure, working_cluster
from tests.clusters import RunningCluster

pytestmark = pytest.mark.processes

CONNECTIONS = 1_000
MEMORY_BYTES_MAX = 14 * 1024 * 1024
"""10 KiB each, and what the appends leave behind."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with working_cluster(tmp_path_factory.mktemp("idle") / "cluster") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviour", "target"),
    list(product(BEHAVIOURS, TARGETS)),
)
def test_connections_that_say_nothing_cost_little(
    cluster: RunningCluster, target: str, behaviour: str
) -> None:
    """LC-82: strangers are closed; whoever has greeted stays. Others are served meanwhile."""
    cost = measure(cluster, target, behaviour, CONNECTIONS, appends=50)
    is_known = behaviour.endswith("after the Hello")
    assert cost.open_at_the_end == (CONNECTIONS if is_known else 0)
    assert cost.pss_most - cost.pss_before <= MEMORY_BYTES_MAX
