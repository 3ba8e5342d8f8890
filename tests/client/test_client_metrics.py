"""The figures of a client, by value and of clients at work."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import waltz
import waltz.metrics
from tests.client.applications import Recorder
from tests.client.test_blocked_partitions import Poisoned
from tests.clusters import wait_until
from waltz.client.client_metrics import (
    CLIENT_FAMILIES,
    CLIENT_METRICS,
    CLIENT_PARTITION_METRICS,
    OTHER_LOCKS,
    REFUSAL_NAMES_MAX,
    UNKNOWN_LOCK,
    ClientPartitionMetrics,
    Refusals,
)
from waltz.errors import ConfigurationError
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId, TransactionId

FRESH = ClientPartitionMetrics(
    partition_id=PartitionId(0),
    is_mounted=True,
    is_denied=False,
    applied_mark=TransactionId(4),
    known_mark=TransactionId(9),
    applied=5,
    pending=0,
    rows_refused=0,
    parked=0,
    blocked_seconds=None,
)


def test_a_lag_is_known_once_the_application_has_said_its_mark() -> None:
    assert FRESH.lag == 5
    assert replace(FRESH, applied_mark=TransactionId(9)).lag == 0
    assert replace(FRESH, applied_mark=None, known_mark=None).lag is None


def test_refusals_have_the_names_of_locks_up_to_a_bound() -> None:
    refusals = Refusals()
    for number in range(REFUSAL_NAMES_MAX + 5):
        refusals.add(waltz.PartitionLocalLock(f"name-{number}", 0))
    refusals.add(waltz.PartitionLocalLock("name-0", 7))
    refusals.add(None)
    assert len(refusals.counts) == REFUSAL_NAMES_MAX + 1
    assert refusals.counts["name-0"] == 2
    assert refusals.counts[OTHER_LOCKS] == 6
    early = Refusals()
    early.add(None)
    assert early.counts == {UNKNOWN_LOCK: 1}


def test_every_figure_has_a_name_of_its_own_and_a_meaning() -> None:
    figures = [(each.name, each.meaning) for each in CLIENT_METRICS]
    figures += [(each.name, each.meaning) for each in CLIENT_PARTITION_METRICS]
    figures += [(each.name, each.meaning) for each in CLIENT_FAMILIES]
    assert len({name for name, _ in figures}) == len(figures)
    assert all(meaning.endswith(".") for _, meaning in figures)


def test_a_client_says_what_it_has_applied_and_how_long_its_appends_took() -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(Recorder())
        client.append(0, b"a")
        client.append_many(0, [b"b"] * 10)
        found = client.metrics()
        assert found.append_seconds.count == 2
        assert found.append_seconds.sum_seconds > 0.0
        assert (found.unfinished, found.retries, found.refusals) == (0, 0, {})
        assert found.connected_servers == 1
        assert found.connections_opened > found.connections_lost == 0
        assert [each.partition_id for each in found.partitions] == [0, 1]
        first = found.partitions[0]
        assert (first.applied_mark, first.applied, first.lag, first.pending) == (10, 11, 0, 0)
        assert first.is_mounted
        assert first.blocked_seconds is None


def test_transactions_that_the_application_had_already_are_not_applied_here() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        writer = cluster.open_client(Recorder())
        for _ in range(5):
            writer.append(0, b"")
        late = Recorder(mark=2)
        client = cluster.open_client(late)
        wait_until(late.has_applied(4), "it is not fed")
        wait_until(lambda: client.metrics().partitions[0].applied == 2, "it has applied 3 and 4")


def test_a_lag_is_what_the_client_has_heard_of_and_not_applied() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        poisoned = Poisoned()
        client = cluster.open_client(poisoned)
        writer = cluster.open_client(Recorder())
        for _ in range(4):
            writer.append(0, b"")
        wait_until(
            lambda: client.metrics().partitions[0].blocked_seconds is not None, "not blocked"
        )
        assert client.get_high_water_mark(0) == 3
        found = client.metrics().partitions[0]
        assert (found.applied_mark, found.lag) == (0, 3)
        assert found.blocked_seconds is not None
        assert found.blocked_seconds >= 0.0
        poisoned.cured.set()
        wait_until(lambda: client.metrics().partitions[0].lag == 0, "it does not catch up")
        assert client.metrics().partitions[0].blocked_seconds is None


def test_refused_locks_are_counted_by_name_and_their_contexts_as_retries() -> None:
    lock = waltz.PartitionLocalLock("account", 7)
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        cluster.faults.fail_next_lock(2)
        client.append(0, b"", write_locks=[lock])
        found = client.metrics()
        assert found.refusals == {"account": 2}
        assert found.retries == 2
        hashes = waltz.lock_hashes("account", [1, 1, 1])
        client.append_many(0, [b""] * 3, write_locks=hashes)
        assert client.metrics().refusals == {"account": 2}, "rows have hashes only"


def test_a_registry_shows_its_clients_by_name_until_they_are_closed() -> None:
    registry = CollectorRegistry()

    def shown() -> str:
        return generate_latest(registry).decode()

    with InMemoryCluster(for_tests=True) as cluster:
        one, two = cluster.open_client(Recorder()), cluster.open_client(Recorder())
        waltz.metrics.register(one, name="one", registry=registry)
        waltz.metrics.register(one, name="one", registry=registry)
        with pytest.raises(ConfigurationError, match="'one'"):
            waltz.metrics.register(two, name="one", registry=registry)
        waltz.metrics.register(two, name="two", registry=registry)
        one.append(0, b"")
        assert 'waltz_client_applied_total{client="one",partition="0"} 1.0' in shown()
        assert 'waltz_client_append_seconds_count{client="one"} 1.0' in shown()
        assert 'waltz_client_append_seconds_count{client="two"} 0.0' in shown()
        assert "refusals_total{" not in shown()
        one.close()
        assert one.is_closed
        assert not two.is_closed
        assert 'client="one"' not in shown()
        assert 'client="two"' in shown()
        waltz.metrics.register(two, name="one", registry=registry)


def test_a_client_for_tasks_has_the_same_figures() -> None:
    async def main(cluster: InMemoryCluster) -> None:
        async with cluster.open_async_client(Recorder()) as client:
            await client.append(0, b"")
            registry = CollectorRegistry()
            waltz.metrics.register(client, registry=registry)
            assert b'applied_total{client="waltz",partition="0"} 1.0' in generate_latest(registry)
            assert client.metrics().append_seconds.count == 1

    with InMemoryCluster(for_tests=True) as cluster:
        asyncio.run(main(cluster))
