"""Traces of OpenTelemetry across the log: spans of appends, and of applying, with links to these.

    class Place(waltz.TransactionContext):
        def execute(self, builder):
            builder.set_transaction_data(self.order, tracing.TracedSerializer(JsonSerializer()))
            return True

    client.submit(tracing.traced(Place(order)))

    class Orders(waltz.WaltzClientCallbacks):
        @tracing.traced_apply
        def apply_transaction(self, transaction):
            order = transaction.get_transaction_data(tracing.TracedSerializer(JsonSerializer()))

Owns the names of spans, events and attributes. The context of the append's span travels in an
envelope of the data, sampled or not; `waltz.apply` links to it and is no child of it: many
processes apply one append, long after it has ended. Needs `opentelemetry-api`, which the extra
`otel` brings; without an SDK there are no spans, and no envelopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, Generic, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from waltz.client.transaction import (
    PartitionLocalLock,
    Serializer,
    TransactionBuilder,
    TransactionContext,
)
from waltz.envelope import MAGIC, enclosed, opened
from waltz.errors import PostponedError
from waltz.types import RequestId, TransactionId

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LINKS_MAX: Final = 128
"""Links of one span of applying; further transactions of a batch are not linked."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Applying:
    """The span of applying under way, and the appends it is linked to."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.linked: set[int] = set()

    def link(self, context: SpanContext) -> None:
        if context.span_id not in self.linked and len(self.linked) < LINKS_MAX:
            self.linked.add(context.span_id)
            self.span.add_link(context)


_applying: ContextVar[_Applying | None] = ContextVar("waltz_applying", default=None)


def _tracer() -> Tracer:
    return trace.get_tracer("waltz")


class TracedSerializer(Generic[T]):
    """A serializer that encloses the context of the present span, and links a `waltz.apply` to it.

    Readers need none of it: our serializers for text, JSON and MessagePack leave an envelope out,
    and this one reads data without envelopes. Only data that is read as bytes shows them.
    """

    def __init__(self, serializer: Serializer[T]) -> None:
        self._serializer = serializer

    def serialize(self, value: T) -> bytes:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        data = self._serializer.serialize(value)
        if not carrier and not data.startswith(MAGIC):
            return data
        return enclosed(carrier, data)

    def deserialize(self, data: bytes) -> T:
        values, inner = opened(data)
        applying = _applying.get()
        if values and applying is not None:
            context = _context_of(values)
            if context.is_valid:
                applying.link(context)
        return self._serializer.deserialize(inner)


def span_context(data: bytes) -> SpanContext | None:
    """Return the context of the span under which `data` was serialized; None: it has none."""
    context = _context_of(dict(opened(data).values))
    return context if context.is_valid else None


def _context_of(values: Any) -> SpanContext:
    context = _PROPAGATOR.extract(values, Context())
    return trace.get_current_span(context).get_span_context()


class TracedContext(TransactionContext):
    """A context with a span `waltz.append`, from now until it is told its end."""

    def __init__(self, context: TransactionContext, tracer: Tracer) -> None:
        self._context = context
        self._attempts = 0
        self.span = tracer.start_span("waltz.append", kind=SpanKind.PRODUCER)

    def partition_id(self, partition_count: int) -> int:
        chosen = self._context.partition_id(partition_count)
        self.span.set_attribute("waltz.partition", chosen)
        return chosen

    def execute(self, builder: TransactionBuilder) -> bool:
        self._attempts += 1
        if self._attempts > 1:
            self.span.add_event("waltz.retry", {"waltz.attempt": self._attempts})
        with trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
            return self._context.execute(builder)

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        lock = self._context.refused_lock
        facts: dict[str, str | int] = {"waltz.lock.holder": int(transaction_id)}
        if lock is not None:
            facts |= {"waltz.lock.name": lock.name, "waltz.lock.id": lock.id}
        self.span.add_event("waltz.refused", facts)
        self._context.on_lock_failure(transaction_id)

    def on_completion(self, result: bool) -> None:
        self.span.set_attribute("waltz.committed", result)
        self._end()
        self._context.on_completion(result)

    def on_application(self) -> None:
        self._context.on_application()

    def on_expiration(self) -> None:
        self.span.set_status(Status(StatusCode.ERROR, "its time was up; it may be in the log"))
        self._end()
        self._context.on_expiration()

    def on_exception(self, error: Exception) -> None:
        self.span.record_exception(error)
        self.span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._end()
        self._context.on_exception(error)

    def _end(self) -> None:
        request_id = self._context.request_id
        if request_id is not None:
            self.span.set_attribute("waltz.request_id", ":".join(map(str, request_id)))
        self.span.end()

    # What a client writes down in a context belongs into the application's own

    @property
    def timeout_seconds(self) -> float | None:  # type: ignore[override]
        return self._context.timeout_seconds

    @property
    def creation_time(self) -> int | None:
        return self._context.creation_time

    @creation_time.setter
    def creation_time(self, value: int | None) -> None:
        object.__setattr__(self._context, "creation_time", value)

    @property
    def request_id(self) -> RequestId | None:
        return self._context.request_id

    @request_id.setter
    def request_id(self, value: RequestId | None) -> None:
        object.__setattr__(self._context, "request_id", value)

    @property
    def refused_lock(self) -> PartitionLocalLock | None:
        return self._context.refused_lock

    @refused_lock.setter
    def refused_lock(self, value: PartitionLocalLock | None) -> None:
        object.__setattr__(self._context, "refused_lock", value)

    @property
    def executed_at(self) -> TransactionId:
        return self._context.executed_at

    @executed_at.setter
    def executed_at(self, value: TransactionId) -> None:
        object.__setattr__(self._context, "executed_at", value)


def traced(context: TransactionContext, tracer: Tracer | None = None) -> TransactionContext:
    """Return `context` with a span `waltz.append`, a child of the present span, which begins now.

    Each execution again is an event, and so is each refusal, with the name of the lock. Its
    `execute` runs in the span. `tracer`: default that of the global provider.
    """
    return TracedContext(context, tracer or _tracer())


def traced_apply(apply: F) -> F:
    """Give each call of `apply_transaction` or `apply_transactions`, or of another method whose
    last argument is a transaction or several, a span `waltz.apply`.

    It is linked to the span of each append whose data a `TracedSerializer` reads meanwhile.
    """

    @wraps(apply)
    def applied(*arguments: Any) -> Any:
        with _apply_span(arguments[-1]):
            return apply(*arguments)

    return applied  # type: ignore[return-value]


@contextmanager
def _apply_span(what: Any) -> Iterator[None]:
    first = getattr(what, "first_transaction_id", None)
    if first is None:
        first = last = what.transaction_id
    else:
        last = what.last_transaction_id
    facts = {"waltz.partition": int(what.partition_id), "waltz.first": first, "waltz.last": last}
    with _tracer().start_as_current_span(
        "waltz.apply",
        kind=SpanKind.CONSUMER,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        token = _applying.set(_Applying(span))
        try:
            yield
        except PostponedError:
            span.add_event("waltz.postponed")
            raise
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            _applying.reset(token)
