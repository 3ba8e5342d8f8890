"""Spans of appends, and of applying, linked across processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

import waltz
from tests.clusters import ROOT, running_cluster, wait_until
from tests.traces import EXPORTER, PROVIDER, SERIALIZER, Applied, new_provider, spans
from waltz import tracing
from waltz.client.transaction import (
    BytesSerializer,
    JsonSerializer,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.envelope import MAGIC
from waltz.errors import PostponedError
from waltz.testing import InMemoryCluster


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


class Order(TransactionContext):
    """Writes `value`, which it may be refused for."""

    def __init__(self, value: Any = 7, *, is_wanted: bool = True) -> None:
        self.value = value
        self.story: list[Any] = []
        self._is_wanted = is_wanted

    def partition_id(self, partition_count: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        if isinstance(self.value, Exception):
            raise self.value
        builder.set_transaction_data(self.value, SERIALIZER)
        builder.set_write_locks([("account", 7)])
        return self._is_wanted

    def on_completion(self, result: bool) -> None:
        self.story.append(result)

    def on_application(self) -> None:
        self.story.append("applied")

    def on_lock_failure(self, transaction_id: waltz.TransactionId) -> None:
        self.story.append(("lock", self.refused_lock))

    def on_exception(self, error: Exception) -> None:
        self.story.append(error)


def test_an_append_and_what_applies_it_are_linked_and_no_family() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        callbacks, order = Applied(), Order({"a": 1})
        client = cluster.open_client(callbacks)
        with trace.get_tracer("application").start_as_current_span("request") as outer:
            client.submit(tracing.traced(order))
        client.flush()
    (append,), (applied,) = spans("waltz.append"), spans("waltz.apply")
    assert append.parent is not None
    assert append.parent.span_id == outer.get_span_context().span_id
    assert applied.parent is None
    assert [link.context.span_id for link in applied.links] == [append.context.span_id]
    assert applied.context.trace_id != append.context.trace_id
    assert applied.attributes == {"waltz.partition": 0, "waltz.first": 0, "waltz.last": 0}
    request = order.request_id
    assert request is not None, "the application's own context has what the client writes down"
    assert append.attributes is not None
    assert append.attributes["waltz.request_id"] == ":".join(map(str, request))
    assert append.attributes["waltz.committed"] is True
    assert order.story == [True, "applied"]
    assert callbacks.values == [{"a": 1}]
    assert order.creation_time is not None
    assert order.executed_at == -1


def test_retries_are_events_and_a_refusal_names_the_lock() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client, order = cluster.open_client(Applied()), Order()
        cluster.faults.fail_next_lock()
        client.submit(tracing.traced(order))
        client.flush()
    (append,) = spans("waltz.append")
    refused, retry = append.events
    assert refused.name == "waltz.refused"
    assert refused.attributes is not None
    assert (refused.attributes["waltz.lock.name"], refused.attributes["waltz.lock.id"]) == (
        "account",
        7,
    )
    assert (retry.name, retry.attributes) == ("waltz.retry", {"waltz.attempt": 2})
    assert order.story == [("lock", waltz.PartitionLocalLock("account", 7)), True, "applied"]


def test_an_append_that_comes_to_nothing_or_to_an_error_ends_its_span() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Applied())
        client.submit(tracing.traced(Order(is_wanted=False)))
        with pytest.raises(ValueError, match="no"):
            client.submit(tracing.traced(Order(ValueError("no"))))
        client.flush()
    nothing, failed = spans("waltz.append")
    assert nothing.attributes is not None
    assert nothing.attributes["waltz.committed"] is False
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]


def test_time_that_is_up_ends_the_span_with_an_error() -> None:
    context = tracing.traced(Order())
    context.on_expiration()
    (append,) = spans("waltz.append")
    assert append.status.status_code is StatusCode.ERROR
    assert context.timeout_seconds is None


def test_a_batch_has_one_span_with_a_link_for_each_append() -> None:
    class InBatches(Applied):
        @tracing.traced_apply
        def apply_transactions(self, transactions: waltz.Transactions) -> None:
            for transaction in transactions:
                self.values.append(transaction.get_transaction_data(SERIALIZER))
                transaction.get_transaction_data(SERIALIZER)

    with InMemoryCluster(for_tests=True) as cluster:
        callbacks = InBatches()
        client = cluster.open_client(callbacks)
        client.submit_many([tracing.traced(Order(number)) for number in range(3)])
        client.flush()
    appends = {span.context.span_id for span in spans("waltz.append")}
    links = [link.context.span_id for span in spans("waltz.apply") for link in span.links]
    assert sorted(links) == sorted(appends), "each once, however often it is read"
    assert sorted(callbacks.values) == [0, 1, 2]
    for span in spans("waltz.apply"):
        assert span.attributes is not None
        assert span.attributes["waltz.partition"] == 0


def test_an_error_of_applying_is_one_of_its_span_and_putting_off_is_not() -> None:
    errors: list[Exception] = [ValueError("cannot"), PostponedError("later", 0.0)]

    class Failing(Applied):
        @tracing.traced_apply
        def apply_transaction(self, transaction: Transaction) -> None:
            if errors:
                raise errors.pop(0)
            self.marks[transaction.partition_id] = transaction.transaction_id

    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Failing())
        client.append(0, b"7")
    failed, postponed, applied = spans("waltz.apply")
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in postponed.events] == ["waltz.postponed"]
    assert postponed.status.status_code is applied.status.status_code is StatusCode.UNSET


def test_readers_without_traces_read_what_was_written_with_them_and_the_other_way_round() -> None:
    with trace.get_tracer("x").start_as_current_span("x") as span:
        data = SERIALIZER.serialize([1])
    assert data.startswith(MAGIC)
    found = tracing.span_context(data)
    assert found is not None
    assert found.span_id == span.get_span_context().span_id
    assert JsonSerializer().deserialize(data) == [1]
    plain = JsonSerializer().serialize([1])
    assert SERIALIZER.deserialize(plain) == [1]
    assert tracing.span_context(plain) is None
    assert SERIALIZER.serialize([1]) == plain, "without a span there is no envelope"
    of_bytes = tracing.TracedSerializer(BytesSerializer())
    assert of_bytes.deserialize(of_bytes.serialize(data)) == data, "bytes like an envelope are data"


@pytest.mark.parametrize("hostile", [b"traceparent:nonsense\n", b"traceparent:\n", b":\n"])
def test_an_envelope_that_names_no_span_links_to_nothing(hostile: bytes) -> None:
    from waltz.envelope import enclosed

    name, _, value = hostile.decode().strip().partition(":")
    assert tracing.span_context(enclosed({name: value}, b"1")) is None


@pytest.mark.processes
@pytest.mark.parametrize("is_sampled", [True, False])
def test_another_process_links_to_an_append_sampled_or_not(
    tmp_path: Path, is_sampled: bool
) -> None:
    provider = PROVIDER if is_sampled else new_provider(is_sampled=False)
    with running_cluster(tmp_path / "cluster") as cluster:
        callbacks = Applied()
        with waltz.open_client(cluster.coordinator, callbacks) as client:
            context = tracing.traced(Order("hello"), provider.get_tracer("waltz"))
            assert isinstance(context, tracing.TracedContext)
            client.submit(context)
            client.flush()
            wait_until(lambda: callbacks.values == ["hello"], "it is not applied")
        done = subprocess.run(
            [sys.executable, "-m", "tests.traces", cluster.coordinator, "0"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (applied,) = json.loads(done.stdout)
    own = context.span.get_span_context()
    assert own.trace_flags.sampled is is_sampled
    assert applied["links"] == [[own.trace_id, own.span_id]]
    assert not applied["parent"]
    assert applied["trace"] != own.trace_id
    assert bool(spans("waltz.append")) is is_sampled
