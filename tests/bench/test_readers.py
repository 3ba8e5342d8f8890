"""Clients that read, on a real cluster."""

from __future__ import annotations

import time

import numpy as np
import pytest

import waltz
from tests.bench.results import workload
from tests.clusters import RunningCluster
from waltz.bench.readers import Access, Consumer, catch_up, ranges, read_ranges
from waltz.bench.writers import prefill

pytestmark = pytest.mark.processes
COUNT = 40


@pytest.fixture
def access(cluster: RunningCluster) -> Access:
    """To a log to which so many were written last, half of them in each partition."""
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        prefill(client, workload("read", partitions=2, prefill=COUNT), lambda count: None)
    return cluster.coordinator, None


def test_the_ranges_are_what_was_written_last(access: Access) -> None:
    found = ranges(access, workload("read", partitions=2, prefill=COUNT))
    assert [end - first for first, end in found.values()] == [COUNT // 2] * 2
    only = ranges(access, workload("read", partitions=1, prefill=10))
    assert [end - first for first, end in only.values()] == [10, 0]


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_feed_is_caught_up_with(access: Access, *, bodies: bool, prefetch: bool) -> None:
    shape = workload("feed", partitions=2, prefill=COUNT, bodies=bodies, prefetch=prefetch)
    found = catch_up(access, shape)
    assert found.transactions == COUNT
    assert found.seconds > 0


@pytest.mark.parametrize("bodies", [False, True])
def test_ranges_are_read(access: Access, *, bodies: bool) -> None:
    shape = workload("read", partitions=2, prefill=COUNT, bodies=bodies)
    assert read_ranges(access, shape).transactions == COUNT


@pytest.mark.spark
def test_ranges_are_read_into_arrow(access: Access) -> None:
    shape = workload("read", partitions=2, prefill=COUNT, bodies=True, arrow=True)
    assert read_ranges(access, shape).transactions == COUNT


@pytest.mark.parametrize("after", [0.0, 0.2])
@pytest.mark.parametrize("bodies", [False, True])
def test_a_consumer_has_all_of_a_round_when_it_came_late_too(
    access: Access, after: float, *, bodies: bool
) -> None:
    """PM-27: it starts where the log ended at the start of the round."""
    shape = workload(partitions=2, consumers=1, consumers_after_seconds=after, bodies=bodies)
    consumer = Consumer(access, shape)
    with waltz.open_client(access[0], waltz.NoCallbacks()) as client:
        consumer.prepare(frozenset({client.client_id}))
        start = time.monotonic_ns()
        client.append(0, b"warm-up", header=-1)
        for number in range(20):
            client.append(number % 2, b"data", header=number)
        consumer.follow(start)
        found = consumer.collect(20)
        assert set(found.client_ids.tolist()) == {client.client_id}
    assert sorted(found.headers.tolist()) == list(range(20))
    assert len(found.applied) == 20
    for partition_id in (0, 1):
        places = found.partition_ids == partition_id
        assert set(found.headers[places] % 2) == {partition_id}
        assert (np.diff(found.transaction_ids[places]) > 0).all()
    assert (found.applied >= found.since).all()
    assert found.since >= start + after * 1e9 or not after
    assert np.issubdtype(found.applied.dtype, np.integer)
