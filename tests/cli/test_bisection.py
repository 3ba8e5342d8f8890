"""The search for the first transaction after which a test fails, against a look at every state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz import RequestId, Transaction
from waltz.cli.bisection import Bisection, Checkpoint, Saved, holds, pickled
from waltz.errors import ConfigurationError
from waltz.types import ClientId, Generation, PartitionId, TransactionId

REQUEST_ID = RequestId(ClientId(7), Generation(1), PartitionId(0), 0)


def never(partition_id: int, transaction_id: int) -> bytes:
    raise AssertionError("the data is there")


@dataclass
class Sums:
    """The sum of all headers, and the IDs that were applied, in order."""

    total: int = 0
    applied: list[int] = field(default_factory=list)

    def apply_transaction(self, transaction: Transaction) -> None:
        self.total += transaction.header
        self.applied.append(transaction.transaction_id)


class Log:
    def __init__(self, headers: Sequence[int]) -> None:
        self.headers = headers
        self.applications = 0

    def read(self, first: int, end: int) -> Iterator[Transaction]:
        for number in range(first, end):
            self.applications += 1
            yield Transaction(REQUEST_ID, TransactionId(number), self.headers[number], b"", never)


def is_below_four(state: Sums) -> bool:
    assert state.applied == list(range(len(state.applied))), "each once, in order"
    return state.total < 4


def search(headers: Sequence[int], every: int) -> tuple[int | None, Bisection]:
    bisection = Bisection(Log(headers).read, is_below_four, Checkpoint(0, pickled(Sums())))
    while bisection.checkpoint.position < len(headers):
        found = bisection.advance(len(headers), every)
        if found is not None:
            return found, bisection
    return None, bisection


def first_by_looking(headers: Sequence[int]) -> int | None:
    return next((n for n in range(len(headers)) if sum(headers[: n + 1]) >= 4), None)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 50))
def test_what_stays_broken_is_found_where_it_breaks(headers: list[int], every: int) -> None:
    found, bisection = search(headers, every)
    assert found == first_by_looking(headers)
    assert bisection.checkpoint.position == (len(headers) if found is None else found)


@given(st.lists(st.integers(-2, 2), max_size=40), st.integers(1, 50))
def test_what_is_found_breaks_a_state_that_was_well(headers: list[int], every: int) -> None:
    found, _ = search(headers, every)
    if found is not None:
        assert sum(headers[:found]) < 4 <= sum(headers[: found + 1])
    if every == 1:
        assert found == first_by_looking(headers)


def test_a_long_stretch_is_halved() -> None:
    log = Log([0] * 700 + [4] + [0] * 323)
    bisection = Bisection(log.read, is_below_four, Checkpoint(0, pickled(Sums())))
    assert bisection.advance(1024, 10_000) == 700
    assert log.applications <= 1024 + 2 * 1024


def test_an_assertion_fails_a_test_and_another_error_is_told_with_its_line() -> None:
    def wrong(state: object) -> bool:
        raise ValueError(state)

    def asserts(state: int) -> None:
        assert state == 1

    assert (holds(asserts, 1), holds(asserts, 2), holds(bool, 0)) == (True, False, False)
    with pytest.raises(ConfigurationError, match=r"raised ValueError\(3\) .*test_bisection.py:\d"):
        holds(wrong, 3)


def test_a_transaction_that_the_state_does_not_take_is_named() -> None:
    bisection = Bisection(Log([8]).read, bool, Checkpoint(0, pickled(None)))
    with pytest.raises(ConfigurationError, match=r"raised AttributeError.* for transaction 0"):
        bisection.advance(1, 1)


def test_a_state_that_cannot_be_copied_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="define __getstate__"):
        pickled(lambda: None)


SAVED = Saved("key", 0, "bank:State", "bank:test", 0, Checkpoint(5, b"x"))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (replace(SAVED, checkpoint=Checkpoint(9, b"y")), True),
        (replace(SAVED, cluster_key="other"), False),
        (replace(SAVED, partition_id=1), False),
        (replace(SAVED, state_name="bank:Other"), False),
        (replace(SAVED, test_name="bank:other"), False),
        (replace(SAVED, first=1), False),
    ],
)
def test_only_the_same_search_is_resumed(other: Saved, is_same: bool) -> None:
    assert SAVED.is_same_search(other) is is_same
