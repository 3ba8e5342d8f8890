"""The histories of a log, as the coordinator keeps them."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.cluster.log_history import (
    HISTORY_BYTES_MAX,
    LogHistory,
    decode_histories,
    encode_histories,
)
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId, TransactionId

ONE = LogHistory(
    UUID(int=1), 1000, {PartitionId(0): TransactionId(101), PartitionId(7): TransactionId(0)}
)
TWO = LogHistory(UUID(int=2), 2000, {PartitionId(0): TransactionId(90)}, (UUID(int=3),))

GOLDEN = (
    b'{"format": 1, "histories": [{"history": "00000000-0000-0000-0000-000000000002",'
    b' "restored_at_milliseconds": 2000, "firsts": {"0": 90}, "retired_directories":'
    b' ["00000000-0000-0000-0000-000000000003"]}]}'
)


def test_histories_are_read_as_they_were_written() -> None:
    for histories in ((), (ONE,), (ONE, TWO)):
        assert decode_histories(encode_histories(histories)) == histories
    assert encode_histories((TWO,)) == GOLDEN


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format": 2, "histories": []}',
        GOLDEN.replace(b"90", b"-1"),
        GOLDEN.replace(b"90", b"true"),
        GOLDEN.replace(b'"0"', b'"-0"'),
        GOLDEN.replace(b"00000002", b"x0000002"),
        b"[" * 100_000,
        b" " * (HISTORY_BYTES_MAX + 1),
    ],
)
def test_a_node_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="node of histories"):
        decode_histories(data)
