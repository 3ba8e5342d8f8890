"""What a task reads: all that was asked for and nothing else, or an error."""

from __future__ import annotations

import pytest

from tests.spark.test_schema import columns
from waltz import TransactionColumns
from waltz.errors import RemoteProtocolError
from waltz.spark.offsets import TransactionRange
from waltz.spark.tasks import complete
from waltz.types import PartitionId, TransactionId

WANTED = TransactionRange(PartitionId(0), TransactionId(5), TransactionId(9))


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ([], "the last transaction read is 4"),
        ([columns(5, [b""] * 3)], "the last transaction read is 7"),
        ([columns(5, [b""] * 5)], "the last transaction read is 9"),
        ([columns(4, [b""] * 5)], "expected transaction 5, found 4"),
        ([columns(5, [b""] * 2), columns(8, [b""])], "expected transaction 7, found 8"),
        ([columns(5, [b""] * 2), columns(5, [b""] * 2)], "expected transaction 7, found 5"),
    ],
)
def test_a_gap_a_repetition_or_a_short_read_is_an_error(
    found: list[TransactionColumns], fault: str
) -> None:
    with pytest.raises(
        RemoteProtocolError, match=f"^WALTZ-2002 partition 0, transactions 5 to 8: {fault}"
    ):
        list(complete(found, WANTED))


def test_columns_of_unequal_length_are_an_error() -> None:
    ragged = columns(5, [b""] * 4)
    short = TransactionColumns(
        first_transaction_id=ragged.first_transaction_id,
        request_ids=ragged.request_ids[:-1],
        headers=ragged.headers,
        data=ragged.data,
    )
    with pytest.raises(RemoteProtocolError, match=r"^WALTZ-2002 .* 4 headers and 63 bytes"):
        list(complete([short], WANTED))


def test_what_was_asked_for_passes_unchanged() -> None:
    found = [columns(5, [b"a"]), columns(6, [b"b", b"c", b"d"])]
    assert list(complete(found, WANTED)) == found
