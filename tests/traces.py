"""Spans of tests, in memory; and an application in a process of its own that tells its spans.

python -m tests.traces COORDINATOR LAST
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import waltz
from waltz import tracing
from waltz.client.transaction import JsonSerializer, Transaction
from waltz.types import PartitionId, TransactionId

SERIALIZER = tracing.TracedSerializer(JsonSerializer())

EXPORTER = InMemorySpanExporter()


def new_provider(*, is_sampled: bool = True) -> TracerProvider:
    """A provider whose spans come to `EXPORTER`."""
    provider = TracerProvider(sampler=ALWAYS_ON if is_sampled else ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    return provider


PROVIDER = new_provider()
trace.set_tracer_provider(PROVIDER)  # once in a process


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


class Applied(waltz.WaltzClientCallbacks):
    """Reads what it applies, in spans."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.marks: dict[PartitionId, TransactionId] = {}

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self.marks.get(partition_id, waltz.NOTHING)

    @tracing.traced_apply
    def apply_transaction(self, transaction: Transaction) -> None:
        self.values.append(transaction.get_transaction_data(SERIALIZER))
        self.marks[transaction.partition_id] = transaction.transaction_id

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None: ...


def main(coordinator: str, last: int) -> None:
    """Apply partition 0 up to `last`, and print the links of each span."""
    done = threading.Event()

    class Until(Applied):
        def apply_transaction(self, transaction: Transaction) -> None:
            super().apply_transaction(transaction)
            if transaction.transaction_id == last:
                done.set()

    with waltz.open_client(coordinator, Until()):
        assert done.wait(60), "the log does not come"
    print(
        json.dumps(
            [
                {
                    "parent": span.parent is not None,
                    "trace": span.context.trace_id,
                    "links": [[link.context.trace_id, link.context.span_id] for link in span.links],
                }
                for span in spans("waltz.apply")
            ]
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
