"""The processes of a workload, and how they fail."""

from __future__ import annotations

import os
import signal

import pytest

from tests.bench.results import workload
from tests.clusters import RunningCluster, wait_until
from waltz.bench.readers import Access
from waltz.bench.workload import Workload
from waltz.bench.workload_processes import Worker, tell_all, workers
from waltz.errors import WaltzError

pytestmark = pytest.mark.processes


def nothing() -> None:
    """Called while they work."""


def test_workers_answer_and_end_with_the_block(cluster: RunningCluster) -> None:
    shape = workload("read", partitions=2, prefill=10)
    access = (cluster.coordinator, None)
    with workers("filler", 1, shape, access) as fillers:
        assert tell_all(fillers, "fill", tick=nothing) == [None]
        assert fillers[0].sent.value == 10
    with workers("reader", 2, shape, access) as readers:
        found = tell_all(readers, "read", tick=nothing)
        assert [each.transactions for each in found] == [10, 10]
    assert not any(each.process.is_alive() for each in fillers + readers)


def test_what_a_worker_fails_with_is_told(cluster: RunningCluster) -> None:
    with workers("reader", 1, workload("feed", prefill=10), ("127.0.0.1:1", None)) as readers:  # noqa: SIM117
        with pytest.raises(WaltzError, match="reader-0: CoordinatorLostError"):
            tell_all(readers, "read", tick=nothing)


def test_one_that_was_killed_is_told_of(cluster: RunningCluster) -> None:
    shape = workload("read", partitions=2, prefill=10)
    with workers("reader", 1, shape, (cluster.coordinator, None)) as readers:
        pid = readers[0].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not readers[0].process.is_alive(), "it still runs")
        with pytest.raises((WaltzError, BrokenPipeError)):
            tell_all(readers, "read", tick=nothing)


def interrupted(shape: Workload, access: Access, found: list[Worker]) -> None:
    with workers("filler", 1, shape, access) as fillers:
        tell_all(fillers, "fill", tick=nothing)
    with workers("reader", 1, shape, access) as readers:
        found += readers
        tell_all(readers, "read", tick=nothing)
        pid = readers[0].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        assert tell_all(readers, "read", tick=nothing)[0].transactions == 10
        raise KeyboardInterrupt


def test_one_ignores_an_interrupt_and_an_interrupted_block_does_not_wait_for_it(
    cluster: RunningCluster,
) -> None:
    shape = workload("read", partitions=2, prefill=10)
    found: list[Worker] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(shape, (cluster.coordinator, None), found)
    assert found[0].process.exitcode is not None
