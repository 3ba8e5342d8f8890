"""An application that stops in the middle is told to go on where it stopped."""

from __future__ import annotations

from random import Random

from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.sim.applications.postponing import DELAY_SECONDS, PostponingApplication
from waltz.sim.judges.history import History
from waltz.sim.judges.payload import Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


def transactions(first: int, count: int) -> list[Transaction]:
    def fetch(*_: object) -> bytes:
        raise AssertionError("the data is here")

    return [
        Transaction(
            RequestId(ClientId(1), Generation(1), P, number),
            TransactionId(number),
            0,
            Payload(number, 1).encode(),
            fetch,
        )
        for number in range(first, first + count)
    ]


def test_what_is_applied_is_told_and_never_more() -> None:
    seen: set[object] = set()
    for seed in range(200):
        user = PostponingApplication("client", History(), RunTrace(), lambda: 0.0, Random(seed))
        handed = transactions(5, 4)
        assert user.choose_prefetch(handed) == handed
        try:
            user.apply_transactions(handed)
        except PostponedError as error:
            through = error.applied_through
        else:
            through = 8
            seen.add("whole")
        applied = [fed.transaction_id for fed in user.history.feed("client", P)]
        assert through is not None
        assert applied == list(range(5, through + 1))
        seen.add(through)
    assert seen == {"whole", 4, 5, 6, 7, 8}


def test_it_is_fed_headers_alone() -> None:
    assert not PostponingApplication.prefetch


def test_an_error_has_a_delay() -> None:
    user = PostponingApplication("client", History(), RunTrace(), lambda: 0.0, Random(1))
    delays = set()
    for first in range(0, 400, 4):
        try:
            user.apply_transactions(transactions(first, 4))
        except PostponedError as error:
            delays.add(error.delay_seconds)
    assert delays == {*DELAY_SECONDS}
