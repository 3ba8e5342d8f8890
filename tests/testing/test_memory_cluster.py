"""A cluster in memory behaves to its clients as a cluster of processes does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tests.client.applications import Recorder
from tests.clusters import ROOT, wait_until
from waltz.errors import ClientClosedError, ConfigurationError, NotFoundError
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId


def test_it_is_refused_unless_it_is_said_to_be_for_tests() -> None:
    """PM-64."""
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match=r"say so with InMemoryCluster\(for_tests=True\)"):
        InMemoryCluster()
    with pytest.raises(ConfigurationError, match="0 partitions; expected 1 to 1000"):
        InMemoryCluster(for_tests=True, partitions=0)
    assert threading.active_count() == before


def test_a_client_appends_is_fed_and_reads_data(waltz_cluster: InMemoryCluster) -> None:
    """PM-60: one partition, the name of the original's."""
    recorder = Recorder(prefetch=False)
    with waltz_cluster.open_client(recorder) as client:
        assert (client.cluster_name, client.partition_count) == ("mock", 1)
        assert [client.append(0, f"{n}".encode(), header=n) for n in range(5)] == [*range(5)]
        assert recorder.applied_in(0) == [0, 1, 2, 3, 4]
        assert client.get_high_water_mark(0) == 4
        with pytest.raises(NotFoundError):
            client.append(1, b"")
    with waltz_cluster.open_reader() as reader:
        assert [d for columns in reader.read(0, 0, 5) for d in columns.data] == [
            b"0", b"1", b"2", b"3", b"4",
        ]  # fmt: skip


@pytest.mark.waltz(partitions=3, name="three")
def test_several_clients_share_one_cluster(waltz_cluster: InMemoryCluster) -> None:
    """PM-61: the second joins at 49 and gets what comes after it."""
    first = waltz_cluster.open_client(Recorder())
    for number in range(60):
        first.append(number % 2 * 2, b"")
    late = Recorder(mark=24)
    second = waltz_cluster.open_client(late)
    assert first.client_id != second.client_id
    assert second.cluster_name == "three"
    wait_until(late.has_applied(29), "the second client is not fed")
    there = [*range(25, 30)]
    wait_until(lambda: late.applied_in(2) == there, "nor with the other partition")
    second.append(2, b"of the second")
    assert first.get_high_water_mark(2) == 30
    wait_until(lambda: first.client_high_water_mark(2) == 30, "the first is not fed")


def test_partitions_may_be_chosen(waltz_cluster: InMemoryCluster) -> None:
    client = waltz_cluster.open_client(Recorder(), partitions=[], max_concurrent_transactions=1)
    assert not client.has_pending_transactions()
    with pytest.raises(ConfigurationError, match="unknown option 'partition'"):
        waltz_cluster.open_client(Recorder(), partition=3)


def test_closing_it_closes_its_clients_and_ends_its_thread() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        cluster.faults.suspend_feed()
    with pytest.raises(ClientClosedError):
        client.append(PartitionId(0), b"")
    assert not [each for each in threading.enumerate() if each.name == "waltz-testing"]
    cluster.close()


def test_no_port_and_no_file_is_opened() -> None:
    """PM-60."""
    program = """
import os, waltz
from waltz.testing import InMemoryCluster

opened = []
import sys
sys.addaudithook(lambda event, arguments: opened.append((event, arguments))
    if event in ("socket.bind", "socket.connect") or event == "open" and "w" in str(arguments[1])
    else None)
with InMemoryCluster(for_tests=True) as cluster:
    cluster.open_client(waltz.NoCallbacks()).append(0, b"")
assert not opened, opened
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b"", "everything is taken apart quietly"
