"""The progress of a bridge to Kafka, by value."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from waltz.bridge.bridge_progress import PartitionProgress, Skip
from waltz.bridge.kafka_progress import (
    PROGRESS_RECORD_BYTES_MAX,
    SKIPS_KEPT_MAX,
    KafkaProgress,
    check_not_set_back,
    parse_kafka_progress,
    progress_key,
    progress_value,
    transactional_id,
)
from waltz.errors import ConfigurationError, CorruptionError, HistoryChangedError

KEY, OTHER, PROCESS = UUID(int=1), UUID(int=2), UUID(int=3)
AT_17 = KafkaProgress(KEY, "test", "orders", 3, PartitionProgress(17, OTHER), PROCESS)


def test_what_is_written_is_read() -> None:
    skipped = AT_17.skipping(Skip(3, 17, 19, 'a "bug"', 1_000), KEY)
    assert (skipped.place, skipped.by) == (PartitionProgress(20, KEY), None)
    for each in (AT_17, skipped):
        assert parse_kafka_progress(progress_value(each), "it") == each


def test_a_name_names_cluster_bridge_and_partition() -> None:
    names = {
        (progress_key(name, key, number), transactional_id(name, key, number))
        for name in ("a", "a.1")
        for key in (KEY, OTHER)
        for number in (0, 1, 11)
    }
    assert len({key for key, _ in names}) == len({name for _, name in names}) == 12


@pytest.mark.parametrize(
    "change",
    [{"next": -1}, {"next": "17"}, {"history": "x"}, {"skips": [{}]}, {"by": 5}, {"next": True}],
)
def test_what_is_no_progress_is_refused(change: dict[str, object]) -> None:
    value = json.dumps({**json.loads(progress_value(AT_17)), **change}).encode()
    with pytest.raises(CorruptionError, match="no progress of a bridge"):
        parse_kafka_progress(value, "it")


def test_other_bytes_and_other_formats_are_refused() -> None:
    for value in (b"", b"[]", b"\xff", b" " * (PROGRESS_RECORD_BYTES_MAX + 1)):
        with pytest.raises(CorruptionError):
            parse_kafka_progress(value, "it")
    later = json.dumps({**json.loads(progress_value(AT_17)), "format": 2}).encode()
    with pytest.raises(ConfigurationError, match="a later release"):
        parse_kafka_progress(later, "it")


def test_a_skip_begins_where_the_partition_is_and_the_oldest_are_forgotten() -> None:
    for first, last in ((16, 20), (18, 20), (17, 16)):
        with pytest.raises(ConfigurationError, match="is at transaction 17"):
            AT_17.skipping(Skip(3, first, last, "r", 0), KEY)
    found = AT_17
    for number in range(17, 17 + SKIPS_KEPT_MAX + 2):
        found = found.skipping(Skip(3, number, number, "r" * 500, 0), KEY)
    assert [each.first for each in found.skips] == [*range(19, 19 + SKIPS_KEPT_MAX)]
    assert found.forgotten_skips == 2
    assert len(progress_value(found)) < PROGRESS_RECORD_BYTES_MAX


def test_progress_that_kafka_has_lost_is_not_gone_over_again() -> None:
    check_not_set_back(AT_17, AT_17)
    check_not_set_back(AT_17.reaching(PartitionProgress(18, KEY), None), AT_17)
    for found in (None, replace(AT_17, place=PartitionProgress(16, OTHER))):
        with pytest.raises(HistoryChangedError, match="were set back"):
            check_not_set_back(found, AT_17)


def test_a_bridge_has_one_topic() -> None:
    AT_17.check_topic("orders")
    with pytest.raises(ConfigurationError, match="has sent partition 3 to topic orders"):
        AT_17.check_topic("other")
