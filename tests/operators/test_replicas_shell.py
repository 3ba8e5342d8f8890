"""What storage nodes hold, read from each by itself, on a real cluster."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.damage import change_data
from waltz import Replica, ReplicaMarks, ReplicaReader
from waltz.errors import CorruptionError, UnavailableError
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.types import PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    ADMIN_SERVER_GREETING,
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AdminSuccessResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.records import SessionInfo

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


Answer = Callable[[Message], Message | None]


@contextmanager
def node_that_says(answer: Answer) -> Iterator[int]:
    """The admin port of a storage node that answers each question as told; yields its port. None:
    the true answer comes when the connection brings the next question."""

    def serve(connection: socket.socket) -> None:
        link = Link(ADMIN_CODEC, ADMIN_SERVER_GREETING)
        late: list[Message] = []
        with connection:
            connection.sendall(link.hello())
            while data := connection.recv(65536):
                for message in link.receive(data):
                    is_opening = isinstance(message, AdminOpenRequest)
                    said = AdminSuccessResponse(-1) if is_opening else answer(message)
                    if said is None:
                        late.append(truth(message))
                    else:
                        connection.sendall(b"".join(map(link.encode, [*late, said])))
                        late.clear()

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=60)


def truth(question: Message) -> Message:
    """Return the answer of a node whose partitions have ten times their number as mark."""
    match question:
        case AdminLastSessionInfoRequest(number, partition_id):
            mark = TransactionId(10 * partition_id)
            return AdminLastSessionInfoResponse(
                number, partition_id, SessionInfo(SessionId(1), mark, mark)
            )
        case AdminRecordListRequest(number, partition_id, first, count):
            return AdminRecordListResponse(number, partition_id, records_from(first, count))
        case _:
            raise AssertionError(question)


def records_from(first: int, count: int) -> RecordBatch:
    return pack_records(TransactionId(first), [NewRecord(bytes(16), 0, b"", 0)] * count)


def copy_at(port: int, partition: int) -> Replica:
    return Replica(PartitionId(partition), ReplicaId("127.0.0.1:1"), port, True, None)


def test_an_answer_about_another_partition_is_refused(cluster: RunningCluster) -> None:
    def of_the_other(question: Message) -> Message:
        assert isinstance(question, AdminLastSessionInfoRequest | AdminRecordListRequest)
        other = PartitionId(1 - question.partition_id)
        if isinstance(question, AdminLastSessionInfoRequest):
            return truth(AdminLastSessionInfoRequest(0, other))
        return truth(AdminRecordListRequest(0, other, question.first_transaction_id, 3))

    with waltz.open_replicas(cluster.coordinator) as nodes, node_that_says(of_the_other) as port:
        copy = copy_at(port, 0)
        questions: list[Callable[[], object]] = [
            lambda: nodes.marks(copy, 5),
            lambda: list(nodes.read(copy, 5, 8)),
            lambda: list(nodes.read_records(copy, 5, 8)),
        ]
        for ask in questions:
            with pytest.raises(
                CorruptionError, match="asked about partition 0 and answered about partition 1"
            ):
                ask()


def test_an_answer_is_refused_wherever_it_belongs_elsewhere(cluster: RunningCluster) -> None:
    """The marks are of the partition asked about, the records are not: neither is believed."""

    def half_true(question: Message) -> Message:
        if isinstance(question, AdminLastSessionInfoRequest):
            return truth(question)
        assert isinstance(question, AdminRecordListRequest)
        return AdminRecordListResponse(0, PartitionId(1), records_from(5, 1))

    def later_records(question: Message) -> Message:
        assert isinstance(question, AdminRecordListRequest)
        first = question.first_transaction_id
        return AdminRecordListResponse(0, question.partition_id, records_from(first + 1, 2))

    with waltz.open_replicas(cluster.coordinator) as nodes:
        with (
            node_that_says(half_true) as port,
            pytest.raises(CorruptionError, match="answered about partition 1"),
        ):
            nodes.marks(copy_at(port, 0), 5)
        with (
            node_that_says(later_records) as port,
            pytest.raises(CorruptionError, match=r"asked for transaction 5 .* and gave 6"),
        ):
            list(nodes.read_records(copy_at(port, 0), 5, 8))


def test_a_late_answer_is_not_taken_for_that_to_the_next_question(cluster: RunningCluster) -> None:
    """A thread that was interrupted asks again; by then the first answer is on its way."""
    questions: list[Message] = []

    def first_late(question: Message) -> Message | None:
        questions.append(question)
        if len(questions) > 1:
            return truth(question)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return None

    with waltz.open_replicas(cluster.coordinator) as nodes, node_that_says(first_late) as port:
        with pytest.raises(KeyboardInterrupt):
            nodes.marks(copy_at(port, 1), -1)
        assert nodes.marks(copy_at(port, 0), -1).promised == 0


def test_threads_may_ask_one_node_at_the_same_time(cluster: RunningCluster) -> None:
    with waltz.open_replicas(cluster.coordinator) as nodes:
        filled = replicas_of(nodes, 0)[0]
        empty = next(each for each in replicas_of(nodes, 1) if each.replica_id == filled.replica_id)

        def ask(number: int) -> bool:
            if number % 2:
                return data_of(nodes, empty, 0, 10) == []
            start = number % COUNT
            return data_of(nodes, filled, start, start + 1) == [b"data of %d" % start]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(400)))


@pytest.mark.long
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
