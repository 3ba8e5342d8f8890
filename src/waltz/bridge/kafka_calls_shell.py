"""The calls to Kafka of a bridge, which block: topics, the progress, a producer per partition.

Owns how the driver, confluent-kafka, is used: every call is cut into slices, so that a bridge which
is told to stop does not wait for a broker. Runs on workers' threads. What an error means is decided
by `kafka_verdict.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from waltz.bridge.destination_shell import DeliveryFailedError
from waltz.bridge.kafka_progress import (
    KafkaProgress,
    parse_kafka_progress,
    progress_key,
    progress_value,
    transactional_id,
)
from waltz.bridge.kafka_record import Record, RunChoice
from waltz.bridge.kafka_verdict import KafkaTrouble, Verdict
from waltz.errors import ConfigurationError

SLICE_SECONDS: Final = 0.5
"""Longest time for which a thread waits for Kafka without looking whether it is to stop."""

PAUSE_SECONDS: Final = 0.1
"""Pause before a call is repeated that Kafka has answered at once."""

ABORT_SECONDS_MAX: Final = 3.0
"""Time to abort a transaction. If that does not work, the next producer of its name aborts it, or
Kafka after the transaction's timeout."""

WINDOW_RECORDS: Final = 256
"""Records at the end of a progress partition that are read first; the last one of a bridge is
there unless many bridges share the topic."""

WINDOW_GROWTH: Final = 16

BATCH_BYTES_MAX: Final = 1_000_000
MESSAGE_BYTES_MIN: Final = 1_000
MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""Bounds of librdkafka's batch.size and message.max.bytes."""

SWEPT_KEY: Final = b"waltz-bridge"
"""Key of the records that are aborted at a beginning: compacted topics take none without."""

PRODUCER_PROPERTIES: Final = frozenset({"compression.type", "linger.ms"})
"""Properties that the driver does not take for other clients without a word."""

PROGRESS_SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Kafka compacts closed segments only: with its 1 GiB a progress topic would grow to that."""

_SPEC: Final[Any] = OffsetSpec
EARLIEST: Final = _SPEC.earliest()
LATEST: Final = _SPEC.latest()

T = TypeVar("T")


class _Ear(logging.Handler):
    """Hears the errors that librdkafka writes to its log. Why it has given up a transaction is
    told there only."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage().partition("]: ")[2])


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The ways of a bridge to Kafka.

    servers     bootstrap servers, `host:port` with commas between.
    name        the bridge's name: its progress, and who replaces whom, go by it.
    properties  properties of librdkafka, from the configuration's whitelist; some are secret.
    """

    servers: str
    topic: str
    progress_topic: str
    name: str
    properties: Mapping[str, str]
    choice: RunChoice
    timeout_seconds: float


class KafkaCallError(DeliveryFailedError):
    """Kafka has not done what it was asked for."""

    def __init__(self, text: str, trouble: KafkaTrouble) -> None:
        super().__init__(text)
        self.trouble = trouble


class AbandonedError(DeliveryFailedError):
    """The bridge was told to stop before Kafka had answered."""


def trouble_of(error: KafkaError) -> KafkaTrouble:
    return KafkaTrouble(
        error.name(), error.str(), error.retriable(), error.txn_requires_abort(), error.fatal()
    )


@contextmanager
def driver_errors() -> Iterator[None]:
    """Raises KafkaException: the driver's own error, although a callback was called after it had
    raised it, from which Python has made SystemError."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


class KafkaCalls:
    """The connections of one bridge. For several threads, but for one call of a partition at a
    time."""

    def __init__(self, options: KafkaOptions, now: Callable[[], float]) -> None:
        self.options = options
        self.now = now
        self.is_abandoned = False
        self._said = ""
        self._log = logging.Logger(f"{__name__}.librdkafka")  # of nobody else, and shown to nobody
        self._log.addHandler(_Ear(self._remember))
        self._admin: AdminClient | None = None

    def abandon(self) -> None:
        """Have all calls end soon, with AbandonedError."""
        self.is_abandoned = True

    def client(self, **more: object) -> dict[str, Any]:
        """Return the properties of a client; `more` are its own."""
        is_producer = "transactional.id" in more
        return {
            **{
                name: value
                for name, value in self.options.properties.items()
                if is_producer or name not in PRODUCER_PROPERTIES
            },
            "bootstrap.servers": self.options.servers,
            "client.id": f"waltz-bridge.{self.options.name}",
            "error_cb": self._hear,
            "logger": self._log,
            **more,
        }

    def _hear(self, error: KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN" or not self._said:
            self._remember(error.str())

    def _remember(self, said: str) -> None:
        self._said = said

    def failure(self, what: str, trouble: KafkaTrouble) -> KafkaCallError:
        said = f"; the connection says: {self._said}" if self._said else ""
        return KafkaCallError(f"Kafka: {what}: {trouble.text} ({trouble.name}){said}", trouble)

    def repeated(self, what: str, call: Callable[[float], T], poll: Callable[[float], object]) -> T:
        """Return what `call`, which takes its timeout, returns; call it again as long as it is only
        late. Raises KafkaCallError; AbandonedError."""
        until = self.now() + self.options.timeout_seconds
        while True:
            try:
                with driver_errors():
                    result = call(SLICE_SECONDS)
                self._said = ""
                return result
            except KafkaException as error:
                trouble = trouble_of(error.args[0])
                with suppress(KafkaException), driver_errors():  # a fatal error comes once more
                    poll(0)  # calls _hear
                if self.is_abandoned:
                    raise AbandonedError(f"Kafka: {what}: the bridge is to stop") from error
                if trouble.verdict is not Verdict.REPEAT or self.now() > until:
                    raise self.failure(what, trouble) from error
                if trouble.name != "_TIMED_OUT":
                    with suppress(KafkaException), driver_errors():
                        poll(PAUSE_SECONDS)

    # Topics

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self.client())
        return self._admin

    def _result(self, what: str, future: Future[T]) -> T:
        """Raises KafkaCallError; AbandonedError."""
        until = self.now() + self.options.timeout_seconds
        while True:
            self.admin.poll(0)
            try:
                return future.result(SLICE_SECONDS)
            except TimeoutError as error:
                if self.is_abandoned:
                    raise AbandonedError(f"Kafka: {what}: the bridge is to stop") from error
                if self.now() > until:
                    late = KafkaTrouble("_TIMED_OUT", "no answer", is_retriable=True)
                    raise self.failure(what, late) from error
            except KafkaException as error:
                raise self.failure(what, trouble_of(error.args[0])) from error

    def partition_count(self, topic: str) -> int | None:
        """Return the partitions of a topic; None: there is none. Raises KafkaCallError."""
        futures = self.admin.describe_topics(
            TopicCollection([topic]), request_timeout=self.options.timeout_seconds
        )
        try:
            return len(self._result(f"topic {topic}", futures[topic]).partitions)
        except KafkaCallError as error:
            if error.trouble.name == "UNKNOWN_TOPIC_OR_PART":
                return None
            raise

    def topic_setting(self, topic: str, name: str) -> str:
        """Return a setting of a topic. Raises KafkaCallError: DescribeConfigs is not allowed."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = self.admin.describe_configs(
            [resource], request_timeout=self.options.timeout_seconds
        )
        found = self._result(f"the configuration of topic {topic}", futures[resource])
        return str(found[name].value)

    def check_topics(self, partitions: Sequence[int]) -> None:
        """Make sure of both topics; create that of the progress. Raises ConfigurationError: one is
        not fit; KafkaCallError."""
        topic, progress = self.options.topic, self.options.progress_topic
        count = self.partition_count(topic)
        needed = max(partitions) + 1
        if count is None:
            raise ConfigurationError(
                f"there is no topic {topic} (bridge.kafka.topic). Create it with at least {needed}"
                f" partitions: kafka-topics.sh --create --topic {topic} --partitions {needed}"
            )
        self._check_count(topic, count, needed)
        there = self.partition_count(progress)
        if there is None:
            self._create_progress_topic(count)
        else:
            self._check_count(progress, there, needed)
        policy = self.topic_setting(progress, "cleanup.policy")
        if policy != "compact":
            raise ConfigurationError(
                f"topic {progress} (bridge.kafka.progressTopic) has cleanup.policy {policy}: Kafka"
                " would delete the progress with its age. Set it to compact: kafka-configs.sh"
                f" --alter --topic {progress} --add-config cleanup.policy=compact"
            )

    def _check_count(self, topic: str, count: int, needed: int) -> None:
        if count < needed:
            raise ConfigurationError(
                f"topic {topic} has {count} partitions, and partition {needed - 1} of the log goes"
                f" to partition {needed - 1} of the topic. Add partitions: kafka-topics.sh --alter"
                f" --topic {topic} --partitions {needed}; or choose with bridge.partitions"
            )

    def _create_progress_topic(self, partitions: int) -> None:
        name = self.options.progress_topic
        new = NewTopic(
            name,
            partitions,
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(PROGRESS_SEGMENT_BYTES),
                "min.cleanable.dirty.ratio": "0.1",
            },
        )
        futures = self.admin.create_topics([new], request_timeout=self.options.timeout_seconds)
        try:
            self._result(f"topic {name} cannot be created", futures[name])
        except KafkaCallError as error:
            if error.trouble.name != "TOPIC_ALREADY_EXISTS":  # two bridges begin
                raise
        until = self.now() + self.options.timeout_seconds
        while True:  # its partitions have no leaders yet
            try:
                self._offset(partitions - 1, LATEST)
            except KafkaCallError:
                if self.now() > until:
                    raise
                self.admin.poll(PAUSE_SECONDS)
                self._admin = None  # the driver remembers that there were none
            else:
                return

    # Progress

    def _offset(self, partition_id: int, spec: Any) -> int:
        at = TopicPartition(self.options.progress_topic, partition_id)
        futures = self.admin.list_offsets(
            {at: spec},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self.options.timeout_seconds,
        )
        (future,) = futures.values()
        return int(self._result("the end of the progress", future).offset)

    def read_progress(
        self, cluster_key: UUID, partition_id: int, *, to_end: bool
    ) -> KafkaProgress | None:
        """Return what is committed; None: nothing. With `to_end` transactions that are open at the
        call are waited for: they are another bridge's, once this partition's producer has begun.
        Raises KafkaCallError; AbandonedError; CorruptionError."""
        end = self._offset(partition_id, LATEST)
        first = self._offset(partition_id, EARLIEST)
        key = progress_key(self.options.name, cluster_key, partition_id)
        window = WINDOW_RECORDS
        while True:
            start = max(first, end - window)
            found = self._last_value(partition_id, key, start, end if to_end else None)
            if found is not None or start == first:
                break
            window *= WINDOW_GROWTH
        if found is None:
            return None
        return parse_kafka_progress(
            found, f"record {key.decode()} of topic {self.options.progress_topic}"
        )

    def _last_value(
        self, partition_id: int, key: bytes, start: int, end: int | None
    ) -> bytes | None:
        """Return the last committed value of `key` from `start` on, up to `end` or to what is
        committed now."""
        consumer: Consumer = Consumer(
            self.client(
                **{
                    "group.id": f"waltz-bridge.{self.options.name}",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 100,
                    "fetch.error.backoff.ms": 50,
                }
            )
        )
        consumer.assign([TopicPartition(self.options.progress_topic, partition_id, start)])
        until = self.now() + self.options.timeout_seconds
        found: bytes | None = None
        while True:
            message = consumer.poll(SLICE_SECONDS)
            error = None if message is None else message.error()
            if message is not None and error is None:
                if message.key() == key:
                    found = message.value()
                continue
            if error is not None and error.name() == "_PARTITION_EOF":
                assert message is not None
                if end is None or (message.offset() or 0) >= end:
                    return found
            elif error is not None and not error.retriable():
                raise self.failure("the progress cannot be read", trouble_of(error))
            if self.is_abandoned:
                raise AbandonedError("Kafka: the progress: the bridge is to stop")
            if self.now() > until:
                late = KafkaTrouble("_TIMED_OUT", "no answer", is_retriable=True)
                raise self.failure("the progress cannot be read to its end", late)

    def producer(self, cluster_key: UUID, partition_id: int) -> PartitionProducer:
        """Return the producer of a partition, which replaces every other one of its name. Raises
        KafkaCallError; AbandonedError."""
        limit = int(self.topic_setting(self.options.topic, "max.message.bytes"))
        limit = max(MESSAGE_BYTES_MIN, min(limit, MESSAGE_BYTES_MAX))
        producer: Producer = Producer(
            self.client(
                **{
                    "transactional.id": transactional_id(
                        self.options.name, cluster_key, partition_id
                    ),
                    "transaction.timeout.ms": int(self.options.timeout_seconds * 1000),
                    "message.max.bytes": limit,
                    # librdkafka may exceed what a batch is to have by one record.
                    "batch.size": min(BATCH_BYTES_MAX, max(1, limit // 2)),
                }
            )
        )
        self.repeated("a producer cannot begin", producer.init_transactions, producer.poll)
        self._sweep(producer, partition_id)
        return PartitionProducer(self, producer, partition_id, limit)

    def _sweep(self, producer: Producer, partition_id: int) -> None:
        """Abort whatever former producers of the name have left open in both partitions.

        The producer's beginning is to do that, and a broker that was stopped and started at that
        moment was seen to take a transaction for aborted without a mark in the partitions. What
        hangs there would be committed with the next transaction, and come twice: a mark ends all
        that its producer has open. So the first transaction has a record for each and is aborted.
        """
        what = "what was left open cannot be aborted"
        topics = (self.options.topic, self.options.progress_topic)
        refusals: list[KafkaTrouble] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refusals.append(trouble_of(error))

        try:
            producer.begin_transaction()
            for topic in topics:
                producer.produce(
                    topic, b"", SWEPT_KEY, partition=partition_id, on_delivery=delivered
                )
            until = self.now() + self.options.timeout_seconds
            while self._left(producer):
                if self.is_abandoned:
                    raise AbandonedError(f"Kafka: {what}: the bridge is to stop")
                if self.now() > until:
                    late = KafkaTrouble("_TIMED_OUT", "no answer", is_retriable=True)
                    raise self.failure(what, late)
        except KafkaException as error:
            raise self.failure(what, trouble_of(error.args[0])) from error
        if refusals:
            # Kafka does not say which of the two it is, and an abort would only say that there is
            # no transaction.
            raise self.failure(f"topic {topics[0]} or {topics[1]} takes nothing", refusals[0])
        self.repeated(what, producer.abort_transaction, producer.poll)

    def _left(self, producer: Producer) -> int:
        """Return the number of records that are still on the way. Raises KafkaException."""
        with driver_errors():
            return producer.flush(SLICE_SECONDS)


class PartitionProducer:
    """The producer of one partition. After an error it is at its end."""

    def __init__(
        self, calls: KafkaCalls, producer: Producer, partition_id: int, record_bytes_max: int
    ) -> None:
        self.record_bytes_max = record_bytes_max
        self._calls = calls
        self._producer = producer
        self._partition_id = partition_id

    def commit(self, records: Sequence[Record], progress: KafkaProgress) -> None:
        """Commit the records and the progress in one Kafka transaction. Raises KafkaCallError: with
        the verdict REFUSED or ABORT nothing is committed, otherwise the progress tells whether it
        is; AbandonedError."""
        try:
            with driver_errors():
                self._commit(records, progress)
        except KafkaException as error:
            trouble = trouble_of(error.args[0])
            raise self._ended(self._calls.failure("a record", trouble)) from error
        except KafkaCallError as error:
            raise self._ended(error) from error

    def _commit(self, records: Sequence[Record], progress: KafkaProgress) -> None:
        options = self._calls.options
        self._producer.begin_transaction()
        for each in records:
            self._produce(options.topic, each.value, each.key, list(each.headers))
        key = progress_key(progress.name, progress.cluster_key, progress.partition_id)
        self._produce(options.progress_topic, progress_value(progress), key, [])
        self._calls.repeated(
            "a transaction cannot be committed",
            self._producer.commit_transaction,
            self._producer.poll,
        )

    def _produce(
        self, topic: str, value: bytes, key: bytes | None, headers: list[tuple[str, Any]]
    ) -> None:
        until = self._calls.now() + self._calls.options.timeout_seconds
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition=self._partition_id, headers=headers
                )
            except BufferError as error:  # the driver's queue is full
                if self._calls.is_abandoned:
                    raise AbandonedError("Kafka: the bridge is to stop") from None
                if self._calls.now() > until:
                    late = KafkaTrouble("_QUEUE_FULL", "the driver's queue does not empty")
                    raise self._calls.failure("a record", late) from error
                self._producer.poll(PAUSE_SECONDS)
            else:
                return

    def _ended(self, error: KafkaCallError) -> KafkaCallError:
        """Abort the transaction if it can be, so that readers do not wait for its timeout; return
        the error."""
        if error.trouble.verdict in (Verdict.REFUSED, Verdict.ABORT):
            until = self._calls.now() + ABORT_SECONDS_MAX
            while self._calls.now() < until:
                try:
                    with driver_errors():
                        self._producer.abort_transaction(SLICE_SECONDS)
                    break
                except KafkaException as failed:
                    if trouble_of(failed.args[0]).verdict is not Verdict.REPEAT:
                        break
        return error

    def end(self) -> None:
        """Drop what is on the way: a transaction that is open stays so until the next producer of
        the name begins."""
        self._producer.purge(blocking=False)
