"""Each knob has its effect, and everything is written once all the same."""

from __future__ import annotations

import pytest

from tests.client.applications import Recorder
from tests.clusters import wait_until
from tests.testing.applications import Count, Counters, Database
from waltz import PartitionLocalLock
from waltz.errors import ConfigurationError
from waltz.testing import Faults, InMemoryCluster


def test_an_append_that_is_lost_is_executed_again(waltz_cluster: InMemoryCluster) -> None:
    """PM-62, PM-40: every third, and each is in the log once in the end."""
    database = Database()
    client = waltz_cluster.open_client(Counters(database))
    contexts = [Count(database, 0, locks=False) for _ in range(9)]
    for number, context in enumerate(contexts):
        if number % 3 == 2:
            waltz_cluster.faults.fail_next_append()
        client.submit(context)
        client.flush()
    assert [each.executions for each in contexts] == [1, 1, 2] * 3
    assert [each.completions for each in contexts] == [[True]] * 9
    assert database.applied == database.values[0] == 9


@pytest.mark.parametrize("version", [4, 5])
def test_a_lock_that_is_refused_is_told_and_retried(
    waltz_cluster: InMemoryCluster, version: int
) -> None:
    """PM-62, PM-13."""
    database = Database()
    client = waltz_cluster.open_client(Counters(database), protocol_version_max=version)
    waltz_cluster.faults.fail_next_lock(2)
    plain, locked = Count(database, 0, locks=False), Count(database, 1)
    client.submit(plain)
    client.submit(locked)
    client.flush()
    assert (plain.lock_failures, plain.executions) == (0, 1)
    assert (locked.lock_failures, locked.executions) == (2, 3)
    assert locked.completions == [True]
    assert database.applied == 2


@pytest.mark.parametrize("version", [4, 5])
def test_some_of_all_appends_are_lost(waltz_cluster: InMemoryCluster, version: int) -> None:
    """PM-62."""
    database = Database()
    waltz_cluster.faults.fault_rate = 0.3
    client = waltz_cluster.open_client(
        Counters(database), protocol_version_max=version, max_concurrent_transactions=30
    )
    contexts = [Count(database, number % 3) for number in range(30)]
    for context in contexts:
        client.submit(context)
    client.flush()
    assert sum(each.executions for each in contexts) > 30
    assert sum(database.values.values()) == database.applied == 30


def test_what_is_lost_of_a_batch_is_lost_alone(waltz_cluster: InMemoryCluster) -> None:
    """PM-62: contexts that come while the loop is busy go together; some lock more than others."""
    database = Database()
    client = waltz_cluster.open_client(Counters(database), max_concurrent_transactions=300)
    waltz_cluster.faults.suspend_feed()
    waltz_cluster.faults.fail_next_append(7)
    waltz_cluster.faults.fail_next_lock(11)
    contexts = [Count(database, number, locks=number % 3 > 0) for number in range(200)]
    for context in contexts:
        client.submit(context)
    waltz_cluster.faults.resume_feed()
    client.flush()
    assert sum(each.lock_failures for each in contexts) == 11
    assert sum(each.executions for each in contexts) == 200 + 7 + 11
    assert database.values == dict.fromkeys(range(200), 1)
    assert database.applied == 200


def test_nothing_comes_back_while_the_feed_is_suspended(waltz_cluster: InMemoryCluster) -> None:
    """PM-01, PM-05, PM-62."""
    database, elsewhere = Database(), Recorder()
    client = waltz_cluster.open_client(Counters(database))
    free = waltz_cluster.open_client(elsewhere, faults=Faults())
    client.submit(Count(database, 0))
    client.flush()
    waltz_cluster.faults.suspend_feed()
    context = Count(database, 0)
    client.submit(context)
    wait_until(elsewhere.has_applied(1), "the other client is not fed")
    assert context.completions == []
    assert client.has_pending_transactions()
    assert client.get_high_water_mark(0) == 1, "only the feed is held back"
    assert (client.client_high_water_mark(0), database.applied) == (0, 1)
    waltz_cluster.faults.resume_feed()
    client.flush()
    assert context.completions == [True]
    assert database.applied == 2
    assert free.client_high_water_mark(0) == 1


def test_delays_change_nothing_but_the_time(waltz_cluster: InMemoryCluster) -> None:
    """PM-62."""
    database = Database()
    waltz_cluster.faults.max_delay_seconds = 0.02
    clients = [waltz_cluster.open_client(Counters(database))]
    for number in range(10):
        clients[0].submit(Count(database, number % 2))
    clients[0].flush()
    assert database.values == {0: 5, 1: 5}


def test_a_take_over_loses_against_a_child_that_moved(waltz_cluster: InMemoryCluster) -> None:
    """PM-63, PM-22: read, write and append locks are the server's own."""
    recorder, rival_recorder = Recorder(), Recorder()
    owner = waltz_cluster.open_client(recorder)
    rival_faults = Faults()
    rival = waltz_cluster.open_client(rival_recorder, faults=rival_faults)
    parent, child = PartitionLocalLock("parent", 1), PartitionLocalLock("child", 1)
    owner.append(0, b"take", write_locks=[parent, child])
    wait_until(rival_recorder.has_applied(0), "the rival is not fed")
    rival_faults.suspend_feed()  # it computes its take-over before the updates
    owner.append(0, b"update", read_locks=[parent], append_locks=[child])
    owner.append(0, b"update", read_locks=[parent], append_locks=[child])
    take_over = _TakeOver(parent, child)
    rival.submit(take_over)
    rival_faults.resume_feed()
    rival.flush()
    assert take_over.lock_failures >= 1
    assert take_over.executions == take_over.lock_failures + 1
    assert owner.get_high_water_mark(0) == 3


class _TakeOver(Count):
    def __init__(self, *locks: PartitionLocalLock) -> None:
        super().__init__(Database(), 0)
        self._locks = locks

    def execute(self, builder: object) -> bool:
        result = super().execute(builder)  # type: ignore[arg-type]
        builder.set_write_locks(self._locks)  # type: ignore[attr-defined]
        return result


def test_knobs_out_of_range_are_refused() -> None:
    faults = Faults()
    with pytest.raises(ConfigurationError, match=r"fault_rate is 1.0; expected 0 to less than 1"):
        faults.fault_rate = 1.0
    with pytest.raises(ConfigurationError, match="max_delay_seconds is -1; expected 0 to 60"):
        faults.max_delay_seconds = -1
    assert (faults.fault_rate, faults.max_delay_seconds) == (0.0, 0.0)


def test_chances_are_those_of_the_seed() -> None:
    def lost(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.fault_rate = 0.5
        return [faults.loses() for _ in range(50)]

    assert lost(1) == lost(1) != lost(2)
