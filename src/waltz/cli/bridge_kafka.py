"""`waltz bridge kafka`: the bridge to a topic, from its configuration to its end; and its progress,
for `waltz bridge status` and `skip`.

Kafka does not tell whether a bridge runs. A skip replaces the producer of one that does, which then
continues after the skipped range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import click

from waltz.cli.bridge_place import Standing, bridge_reader, check_skip, read_kafka_bridge
from waltz.cli.bridge_run import bridge_parameters, chosen_headers, run_bridge
from waltz.cli.log_format import LogFormat
from waltz.cli.nodes import check_http_access, run_loop
from waltz.configuration.bridge_settings import CONNECTIONS, COUNT, PARTITIONS
from waltz.configuration.http_settings import http_access
from waltz.configuration.kafka_bridge_settings import (
    KAFKA_SERVERS,
    KAFKA_TIMEOUT,
    NAME,
    PROPERTY_KEYS,
    RECORD_KEY,
    RUN_BYTES,
    TOPIC,
    kafka_properties,
    progress_topic,
)
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError, UnavailableError, WaltzError

if TYPE_CHECKING:
    from waltz.bridge.bridge_progress import BridgeProgress, Skip
    from waltz.bridge.destination_shell import Destination
    from waltz.bridge.kafka_calls_shell import KafkaCalls, KafkaOptions
    from waltz.bridge.kafka_progress import KafkaProgress
    from waltz.host import Host, Workers

SKIP_ATTEMPTS_MAX: Final = 20
"""Attempts to commit a skip, besides those that end because another producer has begun."""

T = TypeVar("T")


@click.command("kafka")
@bridge_parameters
def bridge_to_kafka(
    file: str,
    once: bool,
    check: bool,
    as_json: bool,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Send the transactions of a cluster to a Kafka topic, each once.

    It runs until SIGTERM or Ctrl-C.

    A consumer that reads what is committed sees each transaction once and in order, per partition.
    What the topic does not take is sent again, and the partition waits for it. With --once the
    bridge ends with 0 if all that the log had at its start is in the topic, and otherwise, after a
    few attempts, with 1.
    """
    settings = read_kafka_bridge(file)
    if check:
        check_http_access(http_access(settings))
        check_files(settings)
        for line in settings.lines():
            click.echo(line)
        return

    def destination(host: Host) -> Destination:
        from uuid import uuid4

        options = kafka_options(settings)
        from waltz.bridge.kafka_destination_shell import KafkaDestination
        from waltz.system.workers import RealWorkers

        workers = RealWorkers(settings[CONNECTIONS], daemon=True, name="waltz-kafka")
        return KafkaDestination(host, workers, options, uuid4())

    run_bridge(
        settings,
        destination,
        once=once,
        as_json=as_json,
        log_format=log_format,
        end_with_stdin=end_with_stdin,
    )


def check_files(settings: Settings) -> None:
    """Raises ConfigurationError: a file that the configuration names cannot be read."""
    kafka_properties(settings)
    for key in PROPERTY_KEYS:
        path: Any = settings.get(key)
        if path is not None and key.name.endswith((".location", ".keytab")):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise ConfigurationError(
                    f"{key.name}: cannot read {path}: {error.strerror}"
                ) from error


def kafka_options(settings: Settings) -> KafkaOptions:
    """Return how a bridge uses Kafka. Raises ConfigurationError: the driver is not installed, or a
    file cannot be read."""
    check_files(settings)
    try:
        from waltz.bridge.kafka_calls_shell import KafkaOptions
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed; the extra kafka brings it: pip install"
            " 'waltz-log[kafka]'"
        ) from None
    from waltz.bridge.kafka_record import RecordKey, RunChoice

    return KafkaOptions(
        servers=settings[KAFKA_SERVERS],
        topic=settings[TOPIC],
        progress_topic=progress_topic(settings),
        name=settings[NAME],
        properties=kafka_properties(settings),
        choice=RunChoice(
            settings[COUNT],
            settings[RUN_BYTES],
            chosen_headers(settings),
            RecordKey(settings[RECORD_KEY]),
        ),
        timeout_seconds=settings[KAFKA_TIMEOUT],
    )


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
            return Standing(where, None, None, {}, str(error), is_known=False)
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
        host, workers, calls = _calls(settings)
        from waltz.bridge.bridge_progress import Skip
        from waltz.bridge.kafka_progress import KAFKA_REMEDY

        async with bridge_reader(settings) as reader:
            key = reader.cluster_key
            mark = await reader.high_water_mark(partition)
            histories = reader.histories
        skip = Skip(partition, first, last, reason, host.clock.wall_milliseconds())

        def skipped(found: KafkaProgress) -> KafkaProgress:
            after = found.skipping(skip, histories.current)
            check_skip(histories, partition, found.place, last, mark, KAFKA_REMEDY)
            return after

        await workers.run_blocking(lambda: _commit_skip(calls, key, skip, skipped))

    _with_kafka(skip)


def _commit_skip(
    calls: KafkaCalls, key: UUID, skip: Skip, skipped: Callable[[KafkaProgress], KafkaProgress]
) -> None:
    """Commit what `skipped` returns for the progress. A bridge that runs replaces the producer of
    an attempt whenever it begins anew itself, so attempts continue until one has come between.
    Raises ConfigurationError; KafkaCallError; the errors of `skipped`."""
    from waltz.bridge.kafka_calls_shell import KafkaCallError
    from waltz.bridge.kafka_verdict import Verdict

    partition, name = skip.partition_id, calls.options.name
    begun = None
    if calls.partition_count(calls.options.progress_topic) is not None:
        begun = calls.read_progress(key, partition, to_end=False)
    if begun is None:
        raise ConfigurationError(
            f"bridge {name} has not begun with partition {partition} of cluster {key}"
        )
    begun.check_topic(calls.options.topic)
    until = calls.now() + calls.options.timeout_seconds
    left = SKIP_ATTEMPTS_MAX
    while True:
        try:
            producer = calls.producer(key, partition)
            found = calls.read_progress(key, partition, to_end=True) or begun
            if skip not in found.skips:  # or the attempt before was committed
                producer.commit((), skipped(found))
            return
        except KafkaCallError as error:
            if error.trouble.verdict is Verdict.FENCED:
                if calls.now() > until:
                    raise
                continue
            left -= 1
            if error.trouble.verdict is Verdict.REFUSED or not left:
                raise
