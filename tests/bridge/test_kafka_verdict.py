"""The verdicts on errors of Kafka, by value, as librdkafka tells them."""

from __future__ import annotations

import pytest

from waltz.bridge.kafka_verdict import KafkaTrouble, Verdict


@pytest.mark.parametrize(
    ("trouble", "verdict"),
    [
        (KafkaTrouble("_TIMED_OUT", "", is_retriable=True), Verdict.REPEAT),
        (KafkaTrouble("COORDINATOR_LOAD_IN_PROGRESS", "", is_retriable=True), Verdict.REPEAT),
        (KafkaTrouble("_FENCED", "", is_fatal=True), Verdict.FENCED),
        (KafkaTrouble("INVALID_PRODUCER_EPOCH", "", needs_abort=True), Verdict.FENCED),
        (KafkaTrouble("MSG_SIZE_TOO_LARGE", ""), Verdict.REFUSED),
        (KafkaTrouble("MSG_SIZE_TOO_LARGE", "", needs_abort=True), Verdict.REFUSED),
        (KafkaTrouble("INVALID_RECORD", "", needs_abort=True), Verdict.REFUSED),
        (KafkaTrouble("OUT_OF_ORDER_SEQUENCE_NUMBER", "", needs_abort=True), Verdict.ABORT),
        (KafkaTrouble("_MSG_TIMED_OUT", "", is_retriable=True, needs_abort=True), Verdict.ABORT),
        (KafkaTrouble("OUT_OF_ORDER_SEQUENCE_NUMBER", "", is_fatal=True), Verdict.ANEW),
        (KafkaTrouble("MSG_SIZE_TOO_LARGE", "", is_fatal=True), Verdict.ANEW),
        (KafkaTrouble("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ""), Verdict.ANEW),
    ],
)
def test_an_error_says_what_comes_next(trouble: KafkaTrouble, verdict: Verdict) -> None:
    assert trouble.verdict is verdict
