"""The progress of a bridge to Kafka: a record per partition, in the same Kafka transaction as what
it is about.

Owns the record's format and the names by which Kafka knows a bridge. Knows no driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from waltz.bridge.bridge_progress import PartitionProgress, Skip, natural, skip_of, skip_value
from waltz.errors import ConfigurationError, CorruptionError, HistoryChangedError

FORMAT: Final = 1

PROGRESS_RECORD_BYTES_MAX: Final = 64 * 1024
"""Size up to which a record is parsed; one has about 300 bytes, and each skip adds up to 2 KiB."""

SKIPS_KEPT_MAX: Final = 10
"""Skipped ranges that a partition's record names; of more the oldest are left out, and counted. The
record is written with each Kafka transaction."""

KAFKA_REMEDY: Final = (
    "The topic has them. Nothing was sent since. Once it is decided what the topic's readers do"
    " about them, choose another bridge.kafka.name, with which the bridge begins anew, and if need"
    " be another bridge.kafka.topic"
)


@dataclass(frozen=True, slots=True)
class KafkaProgress:
    """The progress of one partition, as Kafka has it.

    by  the process that has written it; None: an operator's skip, after which the bridge that runs
        may continue.
    """

    cluster_key: UUID
    name: str
    topic: str
    partition_id: int
    place: PartitionProgress
    by: UUID | None
    skips: tuple[Skip, ...] = ()
    forgotten_skips: int = 0

    def reaching(self, place: PartitionProgress, by: UUID | None) -> KafkaProgress:
        return replace(self, place=place, by=by)

    def skipping(self, skip: Skip, history: UUID) -> KafkaProgress:
        """Return the progress after `skip`. Raises ConfigurationError: the range does not begin
        with the next transaction to send, or is none."""
        if skip.first != self.place.next_id or skip.last < skip.first:
            raise ConfigurationError(
                f"partition {skip.partition_id} is at transaction {self.place.next_id}: a range to"
                f" skip begins there, and {skip.first} to {skip.last} does not, or is empty"
            )
        skips = (*self.skips, skip)
        return replace(
            self.reaching(PartitionProgress(skip.last + 1, history), None),
            skips=skips[-SKIPS_KEPT_MAX:],
            forgotten_skips=self.forgotten_skips + max(0, len(skips) - SKIPS_KEPT_MAX),
        )

    def check_topic(self, topic: str) -> None:
        """Raises ConfigurationError: what was sent is in another topic."""
        if self.topic != topic:
            raise ConfigurationError(
                f"bridge {self.name} has sent partition {self.partition_id} to topic {self.topic},"
                f" and bridge.kafka.topic is {topic}. Nothing was sent. Name that topic, or choose"
                " another bridge.kafka.name, with which the bridge begins anew"
            )


def transactional_id(name: str, cluster_key: UUID, partition_id: int) -> str:
    """Return the name of a partition's producer: of two producers of one name Kafka refuses the
    older one, whichever partitions the two bridges serve otherwise."""
    return f"waltz-bridge.{name}.{cluster_key}.{partition_id}"


def progress_key(name: str, cluster_key: UUID, partition_id: int) -> bytes:
    return f"{name}.{cluster_key}.{partition_id}".encode()


def progress_value(progress: KafkaProgress) -> bytes:
    value = {
        "format": FORMAT,
        "cluster": str(progress.cluster_key),
        "bridge": progress.name,
        "topic": progress.topic,
        "partition": progress.partition_id,
        "next": progress.place.next_id,
        "history": str(progress.place.history),
        "by": None if progress.by is None else str(progress.by),
        "skips": [skip_value(each) for each in progress.skips],
        "forgotten_skips": progress.forgotten_skips,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def parse_kafka_progress(value: bytes, where: str) -> KafkaProgress:
    """Raises CorruptionError: that is no progress; ConfigurationError: of a later format."""
    try:
        if len(value) > PROGRESS_RECORD_BYTES_MAX:
            raise ValueError(f"{len(value):,} bytes")
        found: dict[str, Any] = json.loads(value)
        if found["format"] != FORMAT:
            raise ConfigurationError(
                f"{where} has format {found['format']!r}, and this release knows {FORMAT}: a later"
                " release wrote it"
            )
        partition_id = natural(found["partition"])
        return KafkaProgress(
            UUID(found["cluster"]),
            str(found["bridge"]),
            str(found["topic"]),
            partition_id,
            PartitionProgress(natural(found["next"]), UUID(found["history"])),
            None if found["by"] is None else UUID(found["by"]),
            tuple(skip_of(partition_id, each) for each in found["skips"]),
            natural(found["forgotten_skips"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(
            f"{where} is no progress of a bridge ({error!r}): somebody else writes to the topic."
            " Choose another bridge.kafka.progressTopic, or another bridge.kafka.name; the bridge"
            " then begins anew"
        ) from error


def check_not_set_back(found: KafkaProgress | None, known: KafkaProgress) -> None:
    """Raises HistoryChangedError: Kafka has less progress than it has acknowledged to this
    process."""
    if found is None or found.place.next_id < known.place.next_id:
        has = "no progress" if found is None else f"progress up to {found.place.next_id}"
        raise HistoryChangedError(
            f"Kafka has acknowledged the progress of partition {known.partition_id} up to"
            f" transaction {known.place.next_id}, and now has {has}: its topics were set back."
            " Nothing was sent since. Once the topics are whole, start the bridge again; if they"
            " cannot be, choose another bridge.kafka.name, with which the bridge begins anew"
        )
