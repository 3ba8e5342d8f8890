"""`waltz bridge kafka`: the bridge to a topic, from its configuration to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.bridge_place import read_kafka_bridge
from waltz.cli.bridge_run import bridge_parameters, chosen_headers, run_bridge
from waltz.cli.log_format import LogFormat
from waltz.cli.nodes import check_http_access
from waltz.configuration.bridge_settings import CONNECTIONS, COUNT
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
from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    from waltz.bridge.destination_shell import Destination
    from waltz.bridge.kafka_calls_shell import KafkaOptions
    from waltz.host import Host


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
