"""The options of reads and writes. Spark passes any text on, so a misspelt option is refused here,
by name and with the one that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from uuid import UUID

from waltz.errors import ConfigurationError
from waltz.spark.archive_location import ArchiveLocation, parse_location
from waltz.spark.codes import INVALID_OPTION, MISSING_OPTION, UNKNOWN_OPTION
from waltz.spark.offsets import TASKS_MAX, Offsets, parse_offsets, parse_partitions
from waltz.spark.row_filter import ALL, Intervals, parse_headers
from waltz.spark.row_times import parse_timestamp
from waltz.spark.schema import BATCH_ROWS
from waltz.spark.sink_progress import WRITE_ID_CHARACTERS_MAX
from waltz.types import (
    ClusterAddress,
    PartitionId,
    TlsSettings,
    parse_cluster,
)

OPTIONS: Final = (
    "archive",
    "path",
    "configFile",
    "cluster",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "times",
    "headers",
    "data",
    "serializer",
    "undecodable",
    "failOnDataLoss",
    "maxTransactionsPerTrigger",
    "maxBytesPerTrigger",
    "minTransactionsPerTrigger",
    "maxTriggerDelay",
    "maxTasksPerTrigger",
    "minPartitions",
    "rowsPerBatch",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tokenFile",
)
BATCH_ONLY: Final = ("path",)
STREAM_ONLY: Final = (
    "maxTransactionsPerTrigger",
    "maxBytesPerTrigger",
    "minTransactionsPerTrigger",
    "maxTriggerDelay",
    "maxTasksPerTrigger",
)
SERIALIZERS: Final = ("string", "json", "msgpack")
UNDECODABLE_CHOICES: Final = ("fail", "null", "quarantine")

SINK_OPTIONS: Final = (
    "cluster",
    "clusterKey",
    "configFile",
    "writeId",
    "batchId",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)
SINK_BATCH_ONLY: Final = ("writeId", "batchId")
CHECKPOINT: Final = "checkpointlocation"
"""An option of Spark's own that it passes on to the sink of a stream; in lower case."""

BATCH_ROWS_MAX: Final = 1_000_000
TRIGGER_ROWS_MAX: Final = 1 << 40
TRIGGER_DELAY: Final = 15 * 60.0
"""Seconds that a micro-batch waits for a least number of transactions unless it is told."""
DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
BATCH_ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    cluster            the address of servers, or the coordinator's; None to read an archive alone.
    archive            place of an archive, to read as far as it goes; None for none.
    path               directory of a storage node, to be read instead of the log; None for none.
    partitions         sorted, each once; None for all.
    headers            headers of the transactions to read.
    with_data          whether the data is a column unless the schema says.
    fail_on_data_loss  whether to fail if the log is shorter than offsets require.
    task_count_min     the least number of tasks, if there are that many rows.
    batch_rows_max     rows of one Arrow record batch.
    trigger_rows_max   transactions of one micro-batch; None for all.
    trigger_bytes_max  data of one micro-batch; None for all.
    serializer         one of `SERIALIZERS`, None for plain bytes.
    undecodable        the treatment of data that cannot be decoded.
    trigger_rows_min   transactions for which a micro-batch waits; None: it does not wait.
    trigger_delay      the longest that it waits for them, in seconds.
    trigger_tasks_max  tasks of one micro-batch; None: as many as `task_count_max` says.
    has_end            whether `endingOffsets` was given.
    starting_time      the time with which the read begins; None: `starting` has the positions.
    ending_time        the time before which the read ends; None: `ending` has the positions.
    tls                files that every machine with a task has at the same place.
    """

    cluster: str | None
    archive: ArchiveLocation | None
    path: Path | None
    partitions: tuple[PartitionId, ...] | None
    starting: Offsets
    ending: Offsets
    fail_on_data_loss: bool
    task_count_min: int
    batch_rows_max: int
    trigger_rows_max: int | None
    headers: Intervals = ALL
    with_data: bool = True
    trigger_bytes_max: int | None = None
    serializer: str | None = None
    undecodable: str = "fail"
    starting_time: datetime | None = None
    ending_time: datetime | None = None
    trigger_rows_min: int | None = None
    trigger_delay: float = TRIGGER_DELAY
    trigger_tasks_max: int | None = None
    has_end: bool = False
    tls: TlsSettings = field(default_factory=TlsSettings)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write.

    write_id     the name of the write; None if it is never repeated.
    cluster_key  the key of the only cluster that may be written to; None for any.
    checkpoint   a stream's checkpoint, as in Spark's option; None: Spark's settings place it.
    """

    cluster: str
    write_id: str | None = None
    batch: int = 0
    cluster_key: UUID | None = None
    checkpoint: str | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)


def parse_options(options: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Return the options of a read; keys are compared without regard to case, as Spark does.

    A stream without a starting position starts at the end of the log, as Spark's other streams do.
    Raises ConfigurationError, naming the option: unknown, missing, not in its form, or not for this
    kind of read.
    """
    given = _named(options, OPTIONS)
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in given:
            raise ConfigurationError(
                f"{INVALID_OPTION} option {name} is for"
                f" {'spark.read' if is_stream else 'spark.readStream'} only"
            )
    if "path" in given and ("cluster" in given or "archive" in given):
        raise ConfigurationError(
            f"{INVALID_OPTION} option path reads a storage directory and excludes the options"
            " cluster and archive"
        )
    given, tls = _reached(given)
    if not {"cluster", "archive", "path"} & given.keys():
        raise ConfigurationError(
            f"{MISSING_OPTION} option cluster is missing; expected"
            " waltz://host:port,host:port or the coordinator's host:port"
        )
    if "cluster" in given:
        _expect_cluster(given["cluster"])
    if is_stream and "cluster" not in given:
        raise ConfigurationError(
            f"{MISSING_OPTION} option cluster is missing: an archive alone does not grow"
        )
    _expect_times(given)
    _expect_trigger(given)
    return ReadOptions(
        cluster=given.get("cluster"),
        archive=_archive(given["archive"]) if "archive" in given else None,
        path=Path(given["path"]).absolute() if "path" in given else None,
        partitions=parse_partitions(given["partitions"]) if "partitions" in given else None,
        starting=parse_offsets(
            "startingOffsets",
            given.get("startingOffsets", "latest" if is_stream else "earliest"),
            "earliest",
        ),
        ending=parse_offsets("endingOffsets", given.get("endingOffsets", "latest"), "latest"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        task_count_min=_count(given, "minPartitions", TASKS_MAX) or 1,
        batch_rows_max=_count(given, "rowsPerBatch", BATCH_ROWS_MAX) or BATCH_ROWS,
        trigger_rows_max=_count(given, "maxTransactionsPerTrigger", TRIGGER_ROWS_MAX),
        headers=parse_headers(given["headers"]) if "headers" in given else ALL,
        with_data=_flag(given, "data", default=True),
        trigger_bytes_max=_count(given, "maxBytesPerTrigger", TRIGGER_ROWS_MAX),
        serializer=_choice(given, "serializer", SERIALIZERS),
        undecodable=_choice(given, "undecodable", UNDECODABLE_CHOICES) or "fail",
        starting_time=_time(given, "startingTimestamp"),
        ending_time=_time(given, "endingTimestamp"),
        trigger_rows_min=_count(given, "minTransactionsPerTrigger", TRIGGER_ROWS_MAX),
        trigger_delay=_duration(given, "maxTriggerDelay", TRIGGER_DELAY),
        trigger_tasks_max=_count(given, "maxTasksPerTrigger", TASKS_MAX),
        has_end="endingOffsets" in given,
        tls=tls,
    )


def _expect_trigger(given: Mapping[str, str]) -> None:
    """Raises ConfigurationError: bounds of micro-batches contradict each other."""
    for least, most, count_max in (
        ("minTransactionsPerTrigger", "maxTransactionsPerTrigger", TRIGGER_ROWS_MAX),
        ("minPartitions", "maxTasksPerTrigger", TASKS_MAX),
    ):
        low, high = _count(given, least, count_max), _count(given, most, count_max)
        if low is not None and high is not None and low > high:
            raise ConfigurationError(
                f"{INVALID_OPTION} option {least} is {low}; expected at most the {high} of option"
                f" {most}"
            )
    if "maxTriggerDelay" in given and "minTransactionsPerTrigger" not in given:
        raise ConfigurationError(
            f"{INVALID_OPTION} option maxTriggerDelay needs option minTransactionsPerTrigger:"
            " without it a micro-batch does not wait"
        )


def _duration(given: Mapping[str, str], option: str, otherwise: float) -> float:
    """Return a time in seconds. Raises ConfigurationError."""
    text = given.get(option)
    if text is None:
        return otherwise
    found = DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected a number of ms, s, m or h,"
            " such as 30s"
        )
    return int(found[1]) * UNITS[found[2]]


def _expect_times(given: Mapping[str, str]) -> None:
    """Raises ConfigurationError: options that have to do with time do not fit the others."""
    wants_times = _flag(given, "times", default=False)
    for name, other in (
        ("startingTimestamp", "startingOffsets"),
        ("endingTimestamp", "endingOffsets"),
    ):
        if name in given and other in given:
            raise ConfigurationError(
                f"{INVALID_OPTION} options {name} and {other} exclude each other"
            )
        if "cluster" not in given and (name in given or wants_times):
            raise ConfigurationError(
                f"{INVALID_OPTION} option {name if name in given else 'times'} needs option"
                " cluster: only storage nodes know times"
            )
    first, end = _time(given, "startingTimestamp"), _time(given, "endingTimestamp")
    if first is not None and end is not None and first >= end:
        raise ConfigurationError(
            f"{INVALID_OPTION} option startingTimestamp is {given['startingTimestamp']!r}; expected"
            f" a time before endingTimestamp, {given['endingTimestamp']!r}"
        )


def _time(given: Mapping[str, str], option: str) -> datetime | None:
    text = given.get(option)
    return None if text is None else parse_timestamp(option, text)


def parse_sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options of a write. Raises ConfigurationError, as `parse_options`."""
    checkpoint = next((text for key, text in options.items() if key.lower() == CHECKPOINT), None)
    given = _named(
        {key: value for key, value in options.items() if key.lower() != CHECKPOINT},
        SINK_OPTIONS,
    )
    for name in SINK_BATCH_ONLY if is_stream else ():
        if name in given:
            raise ConfigurationError(
                f"{INVALID_OPTION} option {name} is for df.write only; a stream has its query and"
                " its batches"
            )
    given, tls = _reached(given)
    if "cluster" not in given:
        raise ConfigurationError(
            f"{MISSING_OPTION} option cluster is missing; expected"
            " waltz://host:port,host:port or the coordinator's host:port"
        )
    _expect_cluster(given["cluster"])
    write_id = given.get("writeId")
    if write_id is not None and not 0 < len(write_id) <= WRITE_ID_CHARACTERS_MAX:
        raise ConfigurationError(
            f"{INVALID_OPTION} option writeId has {len(write_id)} characters; expected 1 to"
            f" {WRITE_ID_CHARACTERS_MAX}"
        )
    if "batchId" in given and write_id is None:
        raise ConfigurationError(
            f"{INVALID_OPTION} option batchId needs writeId, the write to which the batch belongs"
        )
    return SinkOptions(
        cluster=given["cluster"],
        write_id=write_id,
        batch=_count(given, "batchId", BATCH_ID_MAX, count_min=0) or 0,
        cluster_key=_cluster_key(given),
        checkpoint=checkpoint,
        tls=tls,
    )


def _cluster_key(given: Mapping[str, str]) -> UUID | None:
    text = given.get("clusterKey")
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise ConfigurationError(
            f"{INVALID_OPTION} option clusterKey is {text!r:.100}; expected a cluster's key, as"
            " `waltz cluster show-cluster-key` prints it"
        ) from None


def _named(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options by their usual spelling. Raises ConfigurationError: one is unknown."""
    spelling = {name.lower(): name for name in known}
    given = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None:
            nearest = get_close_matches(key.lower(), spelling, n=1)
            meant = f"did you mean {spelling[nearest[0]]}? " if nearest else ""
            raise ConfigurationError(
                f"{UNKNOWN_OPTION} unknown option {key!r}; {meant}known are {', '.join(known)}"
            )
        given[name] = value
    return given


def _archive(text: str) -> ArchiveLocation:
    try:
        return parse_location(text, Path.cwd())
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_OPTION} option archive: {error}") from error


def _reached(given: dict[str, str]) -> tuple[dict[str, str], TlsSettings]:
    """Return the options with the cluster that a file names, and how it is reached."""
    path = given.get("configFile")
    if path is None:
        return given, _tls(given)
    for name in ("cluster", "path", "tlsCa", "tlsCert", "tlsKey", "tokenFile"):
        if name in given:
            raise ConfigurationError(
                f"{INVALID_OPTION} options {name} and configFile exclude each other: the file has"
                " the cluster's address and its TLS settings"
            )
    from waltz.spark.configuration_file import read_configuration_file  # few reads name one

    cluster, tls = read_configuration_file(path)
    return {**given, "cluster": cluster}, tls


def _expect_cluster(text: str) -> ClusterAddress:
    try:
        return parse_cluster(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_OPTION} option cluster: {error}") from error


def _tls(given: Mapping[str, str]) -> TlsSettings:
    authorities, certificate, key = (given.get(name) for name in ("tlsCa", "tlsCert", "tlsKey"))
    if (certificate and not authorities) or (key and not certificate):
        raise ConfigurationError(
            f"{INVALID_OPTION} option tlsCert needs tlsCa, and tlsKey both: without CAs every peer"
            " would be trusted"
        )
    token_file = given.get("tokenFile")
    if token_file and not authorities:
        raise ConfigurationError(
            f"{INVALID_OPTION} option tokenFile needs tlsCa: without CAs every server that answers"
            " would be sent the token"
        )
    return TlsSettings(certificate, key, authorities=authorities, token_file=token_file)


def _count(
    given: Mapping[str, str], option: str, count_max: int, *, count_min: int = 1
) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and count_min <= int(text) <= count_max):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected a number from {count_min} to"
            f" {count_max}"
        )
    return int(text)


def _choice(given: Mapping[str, str], option: str, choices: Sequence[str]) -> str | None:
    text = given.get(option)
    if text is not None and text not in choices:
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected one of {', '.join(choices)}"
        )
    return text


def _flag(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = given.get(option)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected true or false"
        )
    return text.lower() == "true"
