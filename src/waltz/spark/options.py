"""The options of a read. Spark passes any text on, so a misspelt option is refused here by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION, MISSING_OPTION, UNKNOWN_OPTION
from waltz.spark.offsets import TASKS_MAX, Offsets, parse_offsets, parse_partitions
from waltz.spark.schema import BATCH_ROWS
from waltz.types import PartitionId, TlsSettings, parse_cluster

OPTIONS: Final = (
    "archive",
    "cluster",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "maxTransactionsPerTrigger",
    "minPartitions",
    "rowsPerBatch",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)
BATCH_ONLY: Final = ("archive", "endingOffsets")
STREAM_ONLY: Final = ("maxTransactionsPerTrigger",)

BATCH_ROWS_MAX: Final = 1_000_000
TRIGGER_ROWS_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and in what pieces.

    cluster            the address of servers, or the coordinator's; None to read an archive alone.
    archive            directory of an archive, for what it has; None for none.
    partitions         sorted, each once; None for all.
    fail_on_data_loss  whether to fail where the log is shorter than it is said to be.
    task_count_min     how many tasks there are at least, if there are that many rows.
    batch_rows_max     rows of one Arrow record batch.
    trigger_rows_max   transactions of one micro-batch; None for all there are.
    tls                files that every machine with a task has at the same place.
    """

    cluster: str | None
    archive: Path | None
    partitions: tuple[PartitionId, ...] | None
    starting: Offsets
    ending: Offsets
    fail_on_data_loss: bool
    task_count_min: int
    batch_rows_max: int
    trigger_rows_max: int | None
    tls: TlsSettings = field(default_factory=TlsSettings)


def parse_options(options: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """Return the options of a read; keys are compared without regard to case, as Spark does.

    A stream that does not say where it starts starts at the end of the log, as Spark's others do.
    Raises ConfigurationError, naming the option: unknown, missing, not in its form, or not for this
    kind of read.
    """
    spelling = {name.lower(): name for name in OPTIONS}
    given = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None:
            raise ConfigurationError(
                f"{UNKNOWN_OPTION} unknown option {key!r}; known are {', '.join(OPTIONS)}"
            )
        given[name] = value
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in given:
            raise ConfigurationError(
                f"{INVALID_OPTION} option {name} is for"
                f" {'spark.read' if is_stream else 'spark.readStream'} only"
            )
    if "cluster" not in given and "archive" not in given:
        raise ConfigurationError(
            f"{MISSING_OPTION} option cluster is missing; expected"
            " waltz://host:port,host:port or the coordinator's host:port"
        )
    if "cluster" in given:
        try:
            parse_cluster(given["cluster"])
        except ConfigurationError as error:
            raise ConfigurationError(f"{INVALID_OPTION} option cluster: {error}") from error
    return ReadOptions(
        cluster=given.get("cluster"),
        archive=Path(given["archive"]).absolute() if "archive" in given else None,
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
        tls=_tls(given),
    )


def _tls(given: Mapping[str, str]) -> TlsSettings:
    authorities, certificate, key = (given.get(name) for name in ("tlsCa", "tlsCert", "tlsKey"))
    if (certificate and not authorities) or (key and not certificate):
        raise ConfigurationError(
            f"{INVALID_OPTION} option tlsCert needs tlsCa, and tlsKey both: without CAs anyone who"
            " answers would be believed"
        )
    return TlsSettings(certificate, key, authorities=authorities)


def _count(given: Mapping[str, str], option: str, count_max: int) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= count_max):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected a number from 1 to {count_max}"
        )
    return int(text)


def _flag(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = given.get(option)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected true or false"
        )
    return text.lower() == "true"
