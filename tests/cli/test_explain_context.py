"""The request IDs and transactions that logs and errors name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waltz.cli.explain_context import CONTEXT_BYTES_MAX, Target, targets_in, text_of
from waltz.errors import ConfigurationError
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

REQUEST_ID = RequestId(ClientId(19), Generation(3), PartitionId(0), 5512)
PLACE = (PartitionId(2), TransactionId(4711))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (f"the outcome of {REQUEST_ID!r} is unknown", REQUEST_ID),
        (json.dumps({"request_id": REQUEST_ID._asdict()}), REQUEST_ID),
        ("2026-11-24 10:00:00 lost 19:3:0:5512.", REQUEST_ID),
        ("0\t17\t0\t19/3/0/5512\tdata", REQUEST_ID),
        ("transaction_parked partition=2 transaction=4711 error='x'", PLACE),
        (json.dumps({"partition": 2, "transaction_id": 4711}), PLACE),
        ("WALTZ-2014 partition 2, transaction 4711: data is not json", PLACE),
        ("transaction 4711 of partition 2 on s1:1", PLACE),
    ],
)
def test_all_forms_that_programs_print_are_found(text: str, target: Target) -> None:
    assert targets_in(text) == [target]


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "2026-11-24T10:00:00 connected to 10.0.0.5:41234",
        "[::1:2:3:4]:80 and fe80:1:2:3:4:5",
        "/var/1/2/3/4/log",
        f"{2**31}:1:1:1",
        "partition 2 has 17 transactions",
        f"partition=2 transaction={2**63}",
    ],
)
def test_other_numbers_are_left_alone(text: str) -> None:
    assert targets_in(text) == []


def test_each_is_found_once_and_in_the_order_of_the_text() -> None:
    text = "partition=2 transaction=4711 lost 19:3:0:5512, then 19:3:0:5512 again, 19:3:0:5513"
    found = targets_in(text)
    assert found == [PLACE, REQUEST_ID, REQUEST_ID._replace(sequence_number=5513)]


def test_a_context_is_a_file_of_that_name_or_else_a_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("19:3:0:5512")
    assert text_of(str(path)) == "19:3:0:5512"
    assert text_of("19:3:0:5512") == "19:3:0:5512"
    assert text_of("x" * 100_000) == "x" * 100_000
    assert text_of("a\0b") == "a\0b"
    path.write_bytes(bytes(CONTEXT_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match="give the lines that matter"):
        text_of(str(path))
