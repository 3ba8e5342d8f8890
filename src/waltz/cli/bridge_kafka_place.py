"""The progress of a bridge to Kafka, beside the log: what `waltz bridge status` and `skip` ask.

Kafka does not tell whether a bridge runs. A skip replaces the producer of one that does, which then
continues after the skipped range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from waltz.cli.bridge_kafka import kafka_options
from waltz.cli.bridge_place import Standing, bridge_reader, check_skip
from waltz.cli.nodes import run_loop
from waltz.configuration.bridge_settings import CONNECTIONS, PARTITIONS
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError, UnavailableError, WaltzError

if TYPE_CHECKING:
    from waltz.bridge.bridge_progress import BridgeProgress
    from waltz.bridge.kafka_calls_shell import KafkaCalls
    from waltz.bridge.kafka_progress import KafkaProgress
    from waltz.host import Host, Workers

T = TypeVar("T")


def _calls(settings: Settings) -> tuple[Host, Workers, KafkaCalls]:
    """Raises ConfigurationError."""
    options = kafka_options(settings)
    from waltz.bridge.kafka_calls_shell import KafkaCalls
    from waltz.system.real_host import real_host
    from waltz.system.workers import RealWorkers
    from waltz.types import TlsSettings

    host = real_host(None, TlsSettings())
    workers = RealWorkers(settings[CONNECTIONS], daemon=True, name="waltz-kafka")
    return host, workers, KafkaCalls(options, host.clock.now)


def kafka_standing(settings: Settings) -> Standing:
    """Return how far a bridge to Kafka is. Raises ConfigurationError; UnavailableError: Kafka does
    not answer."""

    async def standing() -> Standing:
        from waltz.types import PartitionId

        _, workers, calls = _calls(settings)
        where = f"topic {calls.options.progress_topic}, bridge {calls.options.name}"
        try:
            async with bridge_reader(settings) as reader:
                named = settings.get(PARTITIONS) or tuple(range(reader.partition_count))
                key = reader.cluster_key
                marks = await reader.high_water_marks(list(map(PartitionId, named)))
        except (WaltzError, OSError) as error:
            # The progress is kept by the key of the cluster, which only the cluster tells.
            return Standing(where, None, None, {}, str(error))
        if (
            await workers.run_blocking(lambda: calls.partition_count(calls.options.progress_topic))
            is None
        ):
            return Standing(where, None, None, {}, None)
        found = await asyncio.gather(
            *(
                workers.run_blocking(lambda each=each: calls.read_progress(key, each, to_end=False))  # type: ignore[misc]
                for each in named
            )
        )
        there = {each.partition_id: each for each in found if each is not None}
        ends = {int(each): mark + 1 for each, mark in marks.items()}
        return Standing(where, _progress(there), None, ends, None)

    return _with_kafka(standing)


def _with_kafka(asked: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what `asked` returns. Raises UnavailableError: Kafka does not answer."""

    async def answered() -> T:
        from waltz.bridge.destination_shell import DeliveryFailedError

        try:
            return await asked()
        except DeliveryFailedError as error:
            raise UnavailableError(str(error)) from error

    return run_loop(answered())


def _progress(there: Mapping[int, KafkaProgress]) -> BridgeProgress | None:
    from waltz.bridge.bridge_progress import BridgeProgress

    if not there:
        return None
    return BridgeProgress(
        next(iter(there.values())).cluster_key,
        {each: found.place for each, found in there.items()},
        tuple(skip for found in there.values() for skip in found.skips),
        sum(found.forgotten_skips for found in there.values()),
    )


def skip_in_kafka(settings: Settings, partition: int, first: int, last: int, reason: str) -> None:
    """Leave out a range for good. Raises ConfigurationError; HistoryChangedError;
    UnavailableError: Kafka does not answer, and whether the range is left out is unknown."""

    async def skip() -> None:
        from waltz.bridge.bridge_progress import Skip
        from waltz.bridge.kafka_progress import KAFKA_REMEDY

        host, workers, calls = _calls(settings)
        async with bridge_reader(settings) as reader:
            key = reader.cluster_key
            mark = await reader.high_water_mark(partition)
            histories = reader.histories
        now = host.clock.wall_milliseconds()

        def commit() -> None:
            name = calls.options.name
            begun = calls.read_progress(key, partition, to_end=False)
            if begun is None:
                raise ConfigurationError(
                    f"bridge {name} has not begun with partition {partition} of cluster {key}"
                )
            begun.check_topic(calls.options.topic)
            producer = calls.producer(key, partition)
            found = calls.read_progress(key, partition, to_end=True) or begun
            skipped = found.skipping(Skip(partition, first, last, reason, now), histories.current)
            check_skip(histories, partition, found.place, last, mark, KAFKA_REMEDY)
            producer.commit((), skipped)

        await workers.run_blocking(commit)

    _with_kafka(skip)
