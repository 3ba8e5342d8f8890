"""One workload against one cluster."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.results import CALIBRATION, Silent, workload
from tests.clusters import RunningCluster
from waltz.bench.readers import Followed
from waltz.bench.run import drain_seconds, run, written_round
from waltz.bench.trial_cluster import BenchTarget
from waltz.bench.writers import ClientRound
from waltz.errors import WaltzError

MS = 1_000_000


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([int(each * MS) for each in values], np.int64)


def one_writer(client: int = 7, counts: list[int] | None = None) -> ClientRound:
    """Two calls, due at 0 and 10 ms, applied at 5 and 30 ms."""
    kept = None if counts is None else np.array(counts, np.int64)
    return ClientRound(client, 0, array(0, 10), array(5, 30), kept, 1, 0.5)


def followed(client_ids: list[int], headers: list[int], *applied: float) -> Followed:
    """All of partition 3, with IDs from 10 on in the order in which they came."""
    partition_ids = np.full(len(headers), 3, np.int64)
    transaction_ids = np.arange(10, 10 + len(headers))
    return Followed(
        2 * MS, np.array(client_ids), np.array(headers),
        partition_ids, transaction_ids, array(*applied), 0.25,
    )  # fmt: skip


def test_a_round_lasts_until_the_last_was_applied_and_counts_from_the_intended_time() -> None:
    found = written_round([one_writer(), one_writer(8)], [], {"server": 2.0}, {}, is_late=False)
    assert (found.transactions, found.seconds, found.refused) == (4, 0.030, 2)
    assert found.latency is not None
    assert found.latency.nanoseconds.tolist() == array(5, 20, 5, 20).tolist()
    assert found.processor == {"server": 2.0, "client": 1.0}
    assert found.tail is None


def test_consumers_are_timed_from_the_intended_time_and_from_the_writer() -> None:
    reader = followed([8, 7, 7, 8], [1, 0, 1, 0], 40, 6, 31, 7)
    found = written_round([one_writer(), one_writer(8)], [reader], {}, {}, is_late=False)
    assert found.tail is not None
    assert found.lag is not None
    assert found.tail.nanoseconds.tolist() == array(30, 6, 21, 7).tolist()
    assert found.lag.nanoseconds.tolist() == array(10, 1, 1, 2).tolist()
    assert found.processor["consumer"] == 0.25
    assert found.drain_seconds is None


def test_consumers_are_timed_from_the_commit_where_the_server_has_noted_it() -> None:
    reader = followed([7, 7], [0, 1], 6, 31)
    commits = np.array([(3, 10, 4 * MS), (2, 11, 5 * MS), (3, 11, 28 * MS)], np.int64)
    found = written_round([one_writer()], [reader], {}, {}, commits=commits, is_late=False)
    assert found.from_commit is not None
    assert found.from_commit.nanoseconds.tolist() == array(2, 3).tolist()
    assert written_round([one_writer()], [reader], {}, {}, is_late=False).from_commit is None


def test_each_of_a_call_of_many_is_as_late_as_the_call() -> None:
    reader = followed([7] * 5, [0, 1, 2, 3, 4], 6, 6, 6, 31, 32)
    found = written_round([one_writer(counts=[3, 2])], [reader], {}, {}, is_late=False)
    assert found.transactions == 5
    assert found.tail is not None
    assert found.tail.nanoseconds.tolist() == array(6, 6, 6, 21, 22).tolist()


@pytest.mark.parametrize("headers", [[0], [0, 0], [0, 1, 1], [0, 2]])
def test_a_consumer_that_was_handed_something_else_is_told_of(headers: list[int]) -> None:
    reader = followed([7] * len(headers), headers, *[50.0] * len(headers))
    with pytest.raises(WaltzError, match="expected each of the 2 that the client wrote"):
        written_round([one_writer()], [reader], {}, {}, is_late=False)


def test_a_round_in_which_nothing_was_written_is_told_of() -> None:
    empty = ClientRound(7, 0, array(), array(), None, 0, 0.0)
    with pytest.raises(WaltzError, match="no transaction was written"):
        written_round([empty], [], {}, {}, is_late=False)


def test_a_backlog_is_drained_once_the_consumer_is_close_to_the_writer() -> None:
    reader = followed([7] * 3, [0, 1, 2], 1002, 1502, 2010)
    assert drain_seconds(reader, array(0, 1000, 2000)) == 2.008
    assert drain_seconds(reader, array(0, 1, 2)) == 2.008
    late = written_round(
        [one_writer()], [followed([7, 7], [0, 1], 1002, 1502)], {}, {}, is_late=True
    )
    assert late.drain_seconds == 1.5


@pytest.mark.processes
def test_a_load_with_consumers_is_measured(cluster: RunningCluster) -> None:
    """PM-05, PM-27: everything that was written is applied at the writers and at the consumers."""
    shape = workload(
        partitions=2, clients=2, window=8, rate=200.0, consumers=2, bodies=True,
        duration_seconds=0.5, warm_up_seconds=0.2, rounds=2,
    )  # fmt: skip
    pids = {int(each["pid"]): each["role"] for each in cluster.state["processes"]}
    shown = Silent()
    found = run(shape, BenchTarget(cluster.coordinator, None, pids), CALIBRATION, shown)
    assert [each.transactions for each in found.rounds] == [100, 100]
    for each in found.rounds:
        assert each.tail is not None
        assert len(each.tail) == 200
        assert each.processor.keys() >= {"client", "consumer", "server", "storage"}
        assert each.memory["server"] >= each.memory["server (PSS)"] > 0
    assert shown.begun == ["connecting", "warm-up", "round 1 of 2", "round 2 of 2"]


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["feed", "read"])
def test_reading_is_measured(cluster: RunningCluster, verb: str) -> None:
    shape = workload(verb, partitions=2, prefill=50, rounds=2, clients=2)
    shown = Silent()
    found = run(shape, BenchTarget(cluster.coordinator, None, {}), CALIBRATION, shown)
    assert [each.transactions for each in found.rounds] == [100, 100]
    assert found.rate() > 0
    assert shown.begun[0] == "writing 50 transactions"


@pytest.mark.processes
def test_the_memory_of_the_largest_of_a_role_is_told(cluster: RunningCluster) -> None:
    pids = {int(each["pid"]): each["role"] for each in cluster.state["processes"]}
    shape = workload("idle", duration_seconds=0.1, rounds=1)
    found = run(shape, BenchTarget(cluster.coordinator, None, pids), CALIBRATION, Silent())
    roles = {"coordinator", "server", "storage"}
    assert found.rounds[0].memory.keys() == roles | {f"{role} (PSS)" for role in roles}
