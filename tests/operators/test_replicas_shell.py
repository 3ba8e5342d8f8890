"""What storage nodes hold, read from each by itself, on a real cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.damage import change_data
from waltz import Replica, ReplicaMarks, ReplicaReader
from waltz.errors import CorruptionError, UnavailableError
from waltz.types import PartitionId, TransactionId

pytestmark = pytest.mark.processes

COUNT = 40
LAST, NONE = TransactionId(COUNT - 1), TransactionId(-1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of two partitions, with transactions in the first, started a second time."""
    directory = tmp_path_factory.mktemp("cluster") / "data"
    with running_cluster(directory, "--partitions", "2") as first:
        fill(first.coordinator)
    with running_cluster(directory) as second:
        with waltz.open_client(second.coordinator, waltz.NoCallbacks()) as client:
            client.append(0, b"in the second session")
        yield second


def fill(coordinator: str) -> None:
    with waltz.open_client(coordinator, waltz.NoCallbacks()) as client:
        for number in range(COUNT):
            client.append(0, b"data of %d" % number, header=number)
    with waltz.open_replicas(coordinator) as nodes:
        for each in replicas_of(nodes, 0):  # two of three are enough for the client
            while len(data_of(nodes, each, 0, COUNT)) < COUNT:
                time.sleep(0.02)


def replicas_of(nodes: ReplicaReader, partition: int) -> list[Replica]:
    return [each for each in nodes.replicas() if each.partition_id == partition]


def data_of(nodes: ReplicaReader, replica: Replica, first: int, end: int) -> list[bytes]:
    return [bytes(data) for each in nodes.read(replica, first, end) for data in each.data]


def test_every_node_says_what_it_holds(cluster: RunningCluster) -> None:
    with waltz.open_replicas(cluster.coordinator) as nodes:
        assert nodes.partition_count == 2
        with waltz.open_reader(cluster.coordinator) as log:
            assert nodes.cluster_key == log.cluster_key
        found = replicas_of(nodes, 0)
        assert len(found) == 3
        assert len(nodes.replicas()) == 6
        assert sum(each.is_current for each in found) >= 2
        current = [each for each in found if each.is_current]
        held = [nodes.marks(each, COUNT) for each in current]
        assert held.count(ReplicaMarks(LAST, LAST, TransactionId(COUNT))) >= 2
        whole = next(each for each, marks in zip(current, held, strict=True) if marks.last == COUNT)
        assert nodes.marks(whole, 7).last == 7
        assert nodes.marks(whole, 1_000).last == COUNT
        assert nodes.marks(whole, -1).last == -1
        expected = [b"data of %d" % number for number in range(COUNT)]
        for each in found:
            assert data_of(nodes, each, 3, 30) == expected[3:30]
        assert data_of(nodes, whole, 38, 1_000) == [*expected[38:], b"in the second session"]
        (columns,) = nodes.read(whole, 3, 5)
        assert columns.first_transaction_id == 3
        assert columns.headers.tolist() == [3, 4]
        (records,) = nodes.read_records(whole, 3, 5)
        assert records.fault(with_data=True) is None
        assert records.all_data() == expected[3:5]
        assert [each.replica_id for each in nodes.replicas_of([PartitionId(0)])] == [
            each.replica_id for each in found
        ]
        told = nodes.coordinator_nodes()
        assert {"", "/store", "/store/partition/1", "/ids/client"} <= told.keys()
        assert told["/store"]
        empty = replicas_of(nodes, 1)[0]
        assert nodes.marks(empty, 10) == ReplicaMarks(NONE, NONE, NONE)
        assert data_of(nodes, empty, 0, 10) == []
        nodes.close()
    with pytest.raises(waltz.ClientClosedError):
        nodes.replicas()


@pytest.mark.long
def test_a_node_that_is_silent_is_an_error_and_can_be_asked_again(cluster: RunningCluster) -> None:
    with waltz.open_replicas(cluster.coordinator) as nodes:
        for each in replicas_of(nodes, 0):
            nodes.marks(each, COUNT)
        pid = cluster.pid("storage-1")
        os.kill(pid, signal.SIGSTOP)
        silent = {}
        try:
            for each in replicas_of(nodes, 0):
                try:
                    nodes.marks(each, COUNT)
                except UnavailableError as error:
                    silent[each] = str(error)
        finally:
            os.kill(pid, signal.SIGCONT)
        ((stopped, text),) = silent.items()
        assert "no answer from 127.0.0.1:" in text
        assert nodes.marks(stopped, COUNT).promised == LAST
        unknown = Replica(stopped.partition_id, stopped.replica_id, None, True, None)
        with pytest.raises(UnavailableError, match="no admin port of storage node"):
            nodes.marks(unknown, 0)


def test_what_a_node_cannot_vouch_for_is_told_at_its_transaction(tmp_path: Path) -> None:
    """A byte that changed with the record's checksum to go with it: the client's own is left."""
    with running_cluster(tmp_path / "data", "--partitions", "1") as cluster:
        fill(cluster.coordinator)
    change_data(tmp_path / "data" / "storage-2", 0, 11, also_record_checksum=True)
    with (
        running_cluster(tmp_path / "data") as cluster,
        waltz.open_replicas(cluster.coordinator) as nodes,
    ):
        found = []
        for each in nodes.replicas():
            rows: list[bytes] = []
            try:
                for columns in nodes.read(each, 0, COUNT):
                    rows += map(bytes, columns.data)
                assert len(rows) == COUNT
            except CorruptionError as error:
                found.append((rows, str(error)))
        ((rows, text),) = found
        assert rows == [b"data of %d" % number for number in range(11)]
        assert text.startswith("transaction 11 of partition 0 on 127.0.0.1:")
        assert text.endswith("the data does not match its checksum")
