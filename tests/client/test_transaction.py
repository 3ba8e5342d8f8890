from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.transaction import (
    BytesSerializer,
    JsonSerializer,
    MsgpackSerializer,
    PartitionLocalLock,
    PlainAppend,
    StringSerializer,
    Transaction,
    TransactionBuilder,
)
from waltz.errors import LocalProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

GOLDEN = Path(__file__).parent.parent / "golden"
REQUEST_ID = RequestId(ClientId(1), Generation(1), PartitionId(2), 3)


def each_golden_lock() -> Iterator[tuple[str, int, int]]:
    """Computed by the Java original."""
    for line in (GOLDEN / "lock-hashes.jsonl").read_text().splitlines():
        found: dict[str, Any] = json.loads(line)
        yield found["name"], found["id"], found["lockHash"]
    for line in (GOLDEN / "frames.txt").read_text().splitlines():
        if line.startswith("lock "):
            lock, _, rest = line.removeprefix("lock ").partition(" = ")
            name, _, number = lock.rpartition("/")
            yield name, int(number), int(rest.split()[0])


@pytest.mark.parametrize(("name", "number", "expected"), list(each_golden_lock()))
def test_lock_hashes_are_those_of_the_original(name: str, number: int, expected: int) -> None:
    """PM-25."""
    assert PartitionLocalLock(name, number).hash == expected


def java_hash(name: str, number: int) -> int:
    """The definition, word by word."""
    units = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + 256 * high + low) % 2**32
    bits = number % 2**64
    value ^= bits % 2**32 ^ bits // 2**32
    return value if value < 2**31 else value - 2**32


@given(st.text(), st.integers(-(2**63), 2**63 - 1))
def test_lock_hash_is_the_text_hash_with_the_folded_number(name: str, number: int) -> None:
    assert PartitionLocalLock(name, number).hash == java_hash(name, number)


def test_a_lock_has_a_name_a_number_and_equality() -> None:
    """PM-24."""
    lock = PartitionLocalLock("account", 7)
    assert (lock.name, lock.id) == ("account", 7)
    assert lock == PartitionLocalLock("account", 7)
    assert hash(lock) == hash(PartitionLocalLock("account", 7))
    assert lock != PartitionLocalLock("account", 8)
    assert lock != ("account", 7)
    assert repr(lock) == "PartitionLocalLock('account', 7)"


def test_a_lock_without_a_name_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="lock name None"):
        PartitionLocalLock(None, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_lock_number_over_64_bits_is_refused(number: int) -> None:
    with pytest.raises(LocalProtocolError, match="64-bit"):
        PartitionLocalLock("a", number)


@pytest.mark.parametrize("header", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_headers_of_32_bits_are_kept(header: int) -> None:
    """PM-17."""
    builder = TransactionBuilder()
    builder.header = header
    assert builder.header == header


@pytest.mark.parametrize("header", [2**31, -(2**31) - 1])
def test_headers_over_32_bits_are_refused_at_the_call(header: int) -> None:
    with pytest.raises(LocalProtocolError, match="header"):
        TransactionBuilder().set_header(header)


def test_data_goes_through_serializers_and_back() -> None:
    """PM-18, PM-26."""
    for value, serializer in (
        ("grüße \N{GRINNING FACE}", StringSerializer()),
        ("", StringSerializer()),
        ({"a": [1, None]}, JsonSerializer()),
        ({"a": [1, None, b"\xff"], "ü": 2.5}, MsgpackSerializer()),
        (b"\0" * 5_000_000, BytesSerializer()),
    ):
        builder = TransactionBuilder()
        builder.set_transaction_data(value, serializer)
        transaction = Transaction(REQUEST_ID, TransactionId(4), 0, builder.data, never_called)
        assert transaction.get_transaction_data(serializer) == value


def never_called(_: PartitionId, __: TransactionId) -> bytes:
    raise AssertionError("fetched")


def test_a_serializer_that_returns_text_is_refused() -> None:
    class Wrong:
        def serialize(self, value: str) -> Any:
            return value

        def deserialize(self, data: bytes) -> str:
            return ""

    with pytest.raises(LocalProtocolError, match=r"Wrong\.serialize returned str"):
        TransactionBuilder().set_transaction_data("a", Wrong())


def test_data_that_is_missing_or_too_large_is_refused() -> None:
    """PM-19."""
    with pytest.raises(LocalProtocolError, match="no transaction data set"):
        TransactionBuilder().data  # noqa: B018
    with pytest.raises(LocalProtocolError, match=str(DATA_BYTES_MAX)):
        TransactionBuilder().set_data(bytes(DATA_BYTES_MAX + 1))


def test_locks_become_hashes_of_their_kind_in_order() -> None:
    builder = TransactionBuilder()
    builder.set_data(b"hello")
    builder.set_write_locks([PartitionLocalLock("account", 1), PartitionLocalLock("account", -1)])
    builder.set_read_locks([PartitionLocalLock("", 0)])
    builder.set_append_locks([PartitionLocalLock("user", 2**32)])
    assert builder.write_locks == (-1177318868, -1177318867)
    assert builder.read_locks == (0,)
    assert builder.append_locks == (3599306,)


def test_what_is_no_bytes_is_refused_at_once_and_what_may_change_is_copied() -> None:
    builder = TransactionBuilder()
    with pytest.raises(TypeError):
        builder.set_data("text")  # type: ignore[arg-type]
    data = bytearray(b"before")
    builder.set_data(data)  # type: ignore[arg-type]
    data[:] = b"after"
    assert builder.data == b"before"


def test_too_many_locks_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="locks"):
        TransactionBuilder().set_write_locks([PartitionLocalLock("", 0)] * (LOCKS_MAX + 1))


def test_data_is_fetched_once_and_only_when_asked_for() -> None:
    """PM-31, PM-33."""
    fetched: list[tuple[int, int]] = []

    def fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        fetched.append((partition_id, transaction_id))
        return b"body"

    transaction = Transaction(REQUEST_ID, TransactionId(9), -7, None, fetch)
    assert not transaction.has_data
    assert (transaction.request_id, transaction.transaction_id, transaction.header) == (
        REQUEST_ID,
        9,
        -7,
    )
    assert fetched == []
    assert transaction.data == transaction.data == b"body"
    assert fetched == [(2, 9)]
    assert "9" in repr(transaction)


def test_data_that_was_provided_is_not_fetched() -> None:
    transaction = Transaction(REQUEST_ID, TransactionId(9), 0, None, never_called)
    transaction.provide_data(b"")
    assert transaction.has_data
    assert transaction.data == b""


def test_a_plain_append_writes_what_it_was_given() -> None:
    builder = TransactionBuilder()
    context = PlainAppend(3, b"x", 5, [PartitionLocalLock("", 0)])
    assert context.partition_id(4) == 3
    assert context.execute(builder)
    assert (builder.header, builder.data, builder.write_locks) == (5, b"x", (0,))


def test_locks_can_be_compared_with_an_older_mark() -> None:
    builder = TransactionBuilder()
    builder.set_locks_as_of(-1)
    assert builder.locks_as_of == -1
    with pytest.raises(LocalProtocolError, match="expected -1 or more"):
        builder.set_locks_as_of(-2)
