"""Bridges to Kafka of real processes that are killed, with a real broker and a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.judge import Fact
from tests.bridge.kafka_broker import KafkaBroker, running_broker
from tests.bridge.kafka_kills import exact_faults, run


def test_a_consumer_sees_each_transaction_once_although_the_bridge_is_killed(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    assert run(tmp_path, kafka_broker, 2, 3, print) > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_consumer_sees_each_transaction_once_under_hundreds_of_kills(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker:  # it is stopped, and is others' as well
        assert run(tmp_path, broker, 500, 4, print) > 0


def test_the_judge_sees_what_comes_twice() -> None:
    a, b = (0, 1, b"a"), (1, 2, b"b")
    log: list[list[Fact]] = [[a, b]]
    assert exact_faults(log, [[a, b]]) == []
    for consumed in ([a, a, b], [a, b, b], [a], [b, a], [a, b, (2, 1, b"never")]):
        assert exact_faults(log, [consumed])
