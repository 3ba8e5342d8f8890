"""The calls to a real broker: topics, producers that replace each other, and the progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from threading import Thread
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.bridge.kafka_broker import KafkaBroker
from tests.cli.test_outbox_run import free_port
from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.kafka_calls_shell import (
    AbandonedError,
    KafkaCallError,
    KafkaCalls,
    KafkaOptions,
    PartitionProducer,
)
from waltz.bridge.kafka_destination_shell import KafkaLane
from waltz.bridge.kafka_progress import KafkaProgress
from waltz.bridge.kafka_record import Record, RecordKey, RunChoice
from waltz.bridge.kafka_verdict import Verdict
from waltz.errors import ConfigurationError
from waltz.system.real_host import real_host
from waltz.types import TlsSettings

KEY, PROCESS = UUID(int=1), UUID(int=2)


def topic_of(broker: KafkaBroker, partitions: int = 2, **config: str) -> str:
    """Create a topic; return its name."""
    name = f"t-{uuid4()}"
    broker.create_topic(name, partitions, **config)
    return name


def calls_of(
    servers: str, topic: str, name: str = "test", timeout_seconds: float = 60.0
) -> KafkaCalls:
    choice = RunChoice(10, 1_000_000, None, RecordKey.NONE)
    no_properties: Mapping[str, str] = {}
    options = KafkaOptions(
        servers, topic, f"{topic}.p", name, no_properties, choice, timeout_seconds
    )
    return KafkaCalls(options, time.monotonic)


def progress(topic: str, next_id: int, partition: int = 0, name: str = "test") -> KafkaProgress:
    place = PartitionProgress(next_id, KEY)
    return KafkaProgress(KEY, name, topic, partition, place, PROCESS)


def record(number: int, value: bytes | None = None) -> Record:
    return Record(number, None, b"%d" % number if value is None else value, ())


def committed(broker: KafkaBroker, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values that a consumer of its own sees."""
    consumer: Consumer = Consumer(
        {
            **broker.client,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes | None] = []
    while True:
        message = consumer.poll(60.0)
        assert message is not None
        if message.error() is not None:
            return found
        found.append(message.value())


class FencedProducer:
    """A producer that is replaced during each call, as the driver tells it now and then: it calls a
    callback after it has raised a fatal error, and Python raises SystemError from that."""

    def begin_transaction(self) -> None: ...

    def produce(self, *_: object, **__: object) -> None: ...

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
        raise SystemError("a callback returned a result with an exception set") from fenced

    commit_transaction = abort_transaction = flush


def test_a_producer_that_is_fenced_while_a_callback_is_called_is_no_crash() -> None:
    calls, producer = calls_of("nowhere:1", "t"), cast(Any, FencedProducer())
    with pytest.raises(KafkaCallError, match="fenced") as found:
        calls._sweep(producer, 0)
    assert found.value.trouble.verdict is Verdict.FENCED
    with pytest.raises(KafkaCallError, match="fenced") as found:
        PartitionProducer(calls, producer, 0, 1_000).commit((), progress("t", 1))
    assert found.value.trouble.verdict is Verdict.FENCED


def test_topics_are_checked_and_the_progress_has_one_that_is_compacted(
    kafka_broker: KafkaBroker,
) -> None:
    calls = calls_of(kafka_broker.address, f"none-{uuid4()}")
    with pytest.raises(ConfigurationError, match=r"--create --topic none.* --partitions 2"):
        calls.check_topics([0, 1])
    topic = topic_of(kafka_broker, 2)
    calls = calls_of(kafka_broker.address, topic)
    with pytest.raises(ConfigurationError, match=r"has 2 partitions.* --partitions 3"):
        calls.check_topics([2])
    assert calls.partition_count(f"{topic}.p") is None, "nothing is made for what cannot begin"
    calls.check_topics([0, 1])
    assert calls.partition_count(f"{topic}.p") == 2
    assert calls.topic_setting(f"{topic}.p", "cleanup.policy") == "compact"
    calls.check_topics([0, 1])
    other = topic_of(kafka_broker, 1)
    kafka_broker.create_topic(f"{other}.p", 1, cleanup_policy="compact,delete")
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy compact,delete"):
        calls_of(kafka_broker.address, other).check_topics([0])


def test_a_later_producer_replaces_the_one_before_and_nothing_of_an_open_transaction_is_seen(
    kafka_broker: KafkaBroker,
) -> None:
    topic = topic_of(kafka_broker)
    calls = calls_of(kafka_broker.address, topic)
    calls.check_topics([0, 1])
    first = calls.producer(KEY, 0)
    assert calls.read_progress(KEY, 0, to_end=True) is None
    first.commit([record(0), record(1)], progress(topic, 2))
    open_one = first._producer
    open_one.begin_transaction()
    open_one.produce(topic, b"never", partition=0)
    open_one.produce(f"{topic}.p", b"never", b"key", partition=0)
    assert open_one.flush(60.0) == 0, "the broker has it"
    second = calls.producer(KEY, 0)
    assert calls.read_progress(KEY, 0, to_end=True) == progress(topic, 2)
    second.commit([record(2)], progress(topic, 3))
    with pytest.raises(KafkaCallError) as caught:
        calls.repeated("commit", open_one.commit_transaction, open_one.poll)
    assert caught.value.trouble.verdict is Verdict.FENCED
    assert committed(kafka_broker, topic) == [b"0", b"1", b"2"]
    assert calls.read_progress(KEY, 0, to_end=True) == progress(topic, 3)
    assert calls.read_progress(KEY, 1, to_end=True) is None


def test_a_record_that_is_too_large_leaves_nothing_and_says_so(kafka_broker: KafkaBroker) -> None:
    topic = topic_of(kafka_broker, max_message_bytes="2000")
    calls = calls_of(kafka_broker.address, topic)
    calls.check_topics([0])
    for size in (1_980, 5_000):  # Kafka refuses the one, the driver the other
        with pytest.raises(KafkaCallError, match="MSG_SIZE_TOO_LARGE") as caught:
            calls.producer(KEY, 0).commit([record(0), record(1, b"x" * size)], progress(topic, 2))
        assert caught.value.trouble.verdict is Verdict.REFUSED
    assert committed(kafka_broker, topic) == []
    producer = calls.producer(KEY, 0)
    assert producer.record_bytes_max == 2_000
    producer.commit([record(each, b"y" * 900) for each in range(20)], progress(topic, 20))
    assert len(committed(kafka_broker, topic)) == 20, "no batch is larger than one record may be"


def test_the_progress_is_found_behind_that_of_others_which_may_be_open(
    kafka_broker: KafkaBroker,
) -> None:
    topic = topic_of(kafka_broker, 1)
    calls, others = (calls_of(kafka_broker.address, topic, each) for each in ("test", "other"))
    calls.check_topics([0])
    producer = calls.producer(KEY, 0)
    producer.commit([], progress(topic, 1))
    other = others.producer(KEY, 0)
    for number in range(0, 300, 100):  # with the marks of the transactions more than one window
        other._producer.begin_transaction()
        for each in range(number, number + 100):
            other._producer.produce(f"{topic}.p", b"{}", b"%d" % each, partition=0)
        other._producer.commit_transaction(60.0)
    other.commit([], progress(topic, 5, name="other"))
    assert calls.read_progress(KEY, 0, to_end=True) == progress(topic, 1)
    assert others.read_progress(KEY, 0, to_end=True) == progress(topic, 5, name="other")
    open_one: Producer = other._producer
    open_one.begin_transaction()
    open_one.produce(f"{topic}.p", b"open", b"0", partition=0)
    assert open_one.flush(60.0) == 0
    producer.commit([], progress(topic, 2))
    assert calls.read_progress(KEY, 0, to_end=False) == progress(topic, 1)
    found: list[KafkaProgress | None] = []
    reading = Thread(target=lambda: found.append(calls.read_progress(KEY, 0, to_end=True)))
    reading.start()
    open_one.abort_transaction(60.0)
    reading.join()
    assert found == [progress(topic, 2)]


def test_a_broker_that_is_not_there_is_told_and_a_bridge_that_is_to_stop_does_not_wait(
    kafka_broker: KafkaBroker,
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    calls = calls_of(nobody, "t", timeout_seconds=0.5)
    with pytest.raises(KafkaCallError, match="topic t: "):
        calls.partition_count("t")
    patient = calls_of(nobody, "t", timeout_seconds=3_000.0)
    raised: list[Exception] = []

    def ask() -> None:
        try:
            patient.partition_count("t")
        except Exception as error:
            raised.append(error)

    asking = Thread(target=ask)
    asking.start()
    patient.abandon()
    asking.join(60.0)
    assert [type(each) for each in raised] == [AbandonedError]


def test_a_place_is_not_committed_while_a_delivery_is_under_way(kafka_broker: KafkaBroker) -> None:
    """A delivery that nobody awaits any more may still commit a later one."""
    topic = topic_of(kafka_broker)
    calls = calls_of(kafka_broker.address, topic)
    calls.check_topics([0])
    host = real_host(None, TlsSettings())
    lane = KafkaLane(host, host.workers, calls, PROCESS, progress(topic, 3))

    def kept() -> int:
        found = calls.read_progress(KEY, 0, to_end=True)
        assert found is not None
        return found.place.next_id

    async def work() -> None:
        await lane.begin()
        await lane.keep(PartitionProgress(5, KEY), is_due=False)
        lane._is_delivering = True  # as long as the thread of a delivery has not ended
        await lane.flush()
        assert kept() == 3
        lane._is_delivering = False
        await lane.flush()
        assert kept() == 5
        await lane.close()

    asyncio.run(work())
