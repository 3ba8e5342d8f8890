"""`outcome` of the client for threads: every answer that there is."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import hosts_for, server_thread
from tests.clusters import wait_until
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.transaction import PlainAppend, Transaction, TransactionBuilder
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.testing import InMemoryCluster
from waltz.types import ClientId, PartitionId, RequestId


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        yield cluster


def sent(client: WaltzClient, context: PlainAppend | Note) -> RequestId:
    client.submit(context)
    wait_until(lambda: context.request_id is not None, "it was not sent")
    assert context.request_id is not None
    return context.request_id


def test_what_is_in_the_log_is_found_where_it_is(cluster: InMemoryCluster) -> None:
    """UA-30: by its own client, before and after it was told, and by another one."""
    client, other = cluster.open_client(Recorder()), cluster.open_client(Recorder())
    contexts = [PlainAppend(1, b"%d" % n) for n in range(5)]
    requests = [sent(client, context) for context in contexts]
    assert [client.outcome(each) for each in requests] == [*range(5)]
    client.flush()
    assert [other.outcome(each) for each in requests] == [*range(5)]
    for number, context in enumerate(contexts):
        assert context.executed_at < number
        assert other.outcome(requests[number], context.executed_at) == number
        assert client.outcome(requests[number], number - 1, timeout_seconds=60) == number


def test_what_is_not_in_the_log_never_will_be(cluster: InMemoryCluster) -> None:
    """UA-31: the first attempt is lost, the second is another request."""
    client = cluster.open_client(Recorder(), long_wait_seconds=0.05)
    requests: list[RequestId] = []

    class Noting(Note):
        def execute(self, builder: TransactionBuilder) -> bool:
            if self.request_id is not None:
                requests.append(self.request_id)
            return super().execute(builder)

    cluster.faults.fail_next_append()
    note = Noting()
    client.submit(note)
    client.flush()
    assert note.story[-2:] == [True, "applied"]
    assert len(requests) == 1
    assert client.outcome(requests[0]) is None
    assert note.request_id is not None
    assert client.outcome(note.request_id) == 0


def test_who_asks_for_what_cannot_be_said_is_told_why(cluster: InMemoryCluster) -> None:
    client = cluster.open_client(Recorder(), partitions=[0])
    request_id = sent(client, PlainAppend(0, b"x"))
    client.flush()
    with pytest.raises(LocalProtocolError, match="never sent"):
        client.outcome(request_id._replace(sequence_number=1_000))
    with pytest.raises(PartitionInactiveError):
        client.outcome(request_id._replace(partition_id=PartitionId(1)))
    with pytest.raises(NotFoundError):
        client.outcome(request_id._replace(partition_id=PartitionId(2)))
    stranger = request_id._replace(client_id=ClientId(9_999))
    assert client.outcome(stranger) is None, "nobody has appended that"


def test_a_wait_may_have_a_limit(cluster: InMemoryCluster) -> None:
    """LC-87: and who gives up may ask again."""
    client = cluster.open_client(Recorder())
    cluster.faults.suspend_feed()
    request_id = sent(client, PlainAppend(0, b"x"))
    with pytest.raises(OperationTimeoutError, match=r"no server gave the outcome in 0\.05 s"):
        client.outcome(request_id, timeout_seconds=0.05)
    cluster.faults.resume_feed()
    assert client.outcome(request_id, timeout_seconds=60) == 0


def test_a_callback_may_ask(cluster: InMemoryCluster) -> None:
    """UA-64: the answer does not wait for the callback."""

    class Asking(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[int | None] = []
            self.client: WaltzClient | None = None
            self.ready = threading.Event()

        def apply_transaction(self, transaction: Transaction) -> None:
            super().apply_transaction(transaction)
            self.ready.wait(60)
            assert self.client is not None
            self.found.append(self.client.outcome(transaction.request_id, timeout_seconds=60))

    asking = Asking()
    client = asking.client = cluster.open_client(asking)
    asking.ready.set()
    client.append(0, b"x")
    client.append(0, b"y")
    client.flush()
    assert asking.found == [0, 1]
    assert asking.uncaught == []


def test_closing_ends_the_wait_and_older_servers_have_no_word_for_it(
    cluster: InMemoryCluster,
) -> None:
    client = cluster.open_client(Recorder())
    cluster.faults.suspend_feed()
    request_id = sent(client, PlainAppend(0, b"x"))
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.outcome(request_id)
        except ClientClosedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: bool(client.engine.runners[PartitionId(0)].waiting._outcomes), "nobody asks")
    client.close()
    asking.join(60)
    assert len(errors) == 1
    with pytest.raises(ClientClosedError):
        client.outcome(request_id)
    with (
        server_thread() as old,
        WaltzClient(hosts_for(old), Recorder(), ClientOptions()) as client_of_old,
    ):
        at_old = sent(client_of_old, PlainAppend(0, b"x"))
        client_of_old.flush()
        with pytest.raises(LocalProtocolError, match="version"):
            client_of_old.outcome(at_old)
