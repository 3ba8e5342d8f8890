"""The options of a read. Spark passes any text on, so a misspelt option is refused here by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION, MISSING_OPTION, UNKNOWN_OPTION
from waltz.spark.offsets import TASKS_MAX, Offsets, parse_offsets, parse_partitions
from waltz.spark.schema import BATCH_ROWS
from waltz.types import PartitionId, TlsSettings, parse_cluster

OPTIONS: Final = (
    "cluster",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "rowsPerBatch",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)

BATCH_ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and in what pieces.

    cluster         the address of servers, or the coordinator's.
    partitions      sorted, each once; None for all.
    task_count_min  how many tasks there are at least, if there are that many rows.
    batch_rows_max  rows of one Arrow record batch.
    tls             files that every machine with a task has at the same place.
    """

    cluster: str
    partitions: tuple[PartitionId, ...] | None
    starting: Offsets
    ending: Offsets
    task_count_min: int
    batch_rows_max: int
    tls: TlsSettings = field(default_factory=TlsSettings)


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read; keys are compared without regard to case, as Spark does.

    Raises ConfigurationError, naming the option: unknown, missing, or not in its form.
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
    if "cluster" not in given:
        raise ConfigurationError(
            f"{MISSING_OPTION} option cluster is missing; expected"
            " waltz://host:port,host:port or the coordinator's host:port"
        )
    try:
        parse_cluster(given["cluster"])
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_OPTION} option cluster: {error}") from error
    return ReadOptions(
        cluster=given["cluster"],
        partitions=parse_partitions(given["partitions"]) if "partitions" in given else None,
        starting=parse_offsets(
            "startingOffsets", given.get("startingOffsets", "earliest"), "earliest"
        ),
        ending=parse_offsets("endingOffsets", given.get("endingOffsets", "latest"), "latest"),
        task_count_min=_count(given, "minPartitions", 1, TASKS_MAX),
        batch_rows_max=_count(given, "rowsPerBatch", BATCH_ROWS, BATCH_ROWS_MAX),
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


def _count(given: Mapping[str, str], option: str, default: int, count_max: int) -> int:
    text = given.get(option)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= count_max):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected a number from 1 to {count_max}"
        )
    return int(text)
