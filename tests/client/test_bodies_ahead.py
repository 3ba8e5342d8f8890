"""The data that is requested ahead of an application's calls: how much, and what is never asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
import pytest

from tests.client.partition_world import OTHER, request
from waltz.client.applying.bodies_ahead import (
    BODIES_AHEAD_BYTES_MAX,
    BODIES_AHEAD_MAX,
    BODIES_READ_PER_BODY_AHEAD,
    BodiesAhead,
)
from waltz.client.applying.transactions import Transactions
from waltz.connections.requests_shell import TakesAhead
from waltz.errors import OperationTimeoutError
from waltz.types import PartitionId, TransactionId
from waltz.wire.fed import FedRun, FedRuns

P0 = PartitionId(0)


class World:
    """An application that reads bodies, and a server that answers when it is told to."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.waited: list[int] = []
        """The transactions whose body a call has waited for, under way already or not."""
        self.asked: list[int] = []
        """The transactions whose body was requested ahead, in order."""
        self._answered = 0
        self.error: Exception | None = None
        self.bodies = BodiesAhead(self)

    def fetch(
        self, _: PartitionId, number: TransactionId, ahead: Sequence[TransactionId], __: TakesAhead
    ) -> bytes:
        self.waited.append(number)
        self.asked += ahead
        if self.error is not None:
            raise self.error
        return self.body(number)

    def fetch_ahead(
        self, _: PartitionId, ahead: Sequence[TransactionId], taker: TakesAhead
    ) -> None:
        assert taker is self.bodies
        self.asked += ahead

    def body(self, number: int) -> bytes:
        return (b"%d" % number).ljust(self.size)

    def hand_over(self, first: int, count: int, *, with_data: Iterable[int] = ()) -> Transactions:
        """Let the application begin with transactions; the data of some of them is here."""
        run = FedRun(TransactionId(first), [(request(1, client_id=OTHER), count)], _headers(count))
        made = Transactions(FedRuns([run]), self.bodies.fetch)
        for number in with_data:
            made[number - first].provide_data(self.body(number))
        self.bodies.begin(made)
        return made

    def read(self, transactions: Transactions, *numbers: int) -> None:
        for number in numbers:
            transaction = transactions[number - transactions.first_transaction_id]
            assert transaction.data == self.body(number)

    def answer(self) -> None:
        """Let everything come that was requested ahead and has not come yet."""
        for number in self.asked[self._answered :]:
            if number not in self.waited:
                self.bodies.take(TransactionId(number), self.body(number))
        self._answered = len(self.asked)


def _headers(count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.zeros(count, np.int32)


def test_the_next_body_is_requested_with_the_call_for_the_fourth_in_a_row() -> None:
    world = World()
    made = world.hand_over(10, 20)
    world.read(made, 10, 11, 12)
    assert (world.waited, world.asked) == ([10, 11, 12], [])
    world.read(made, 13)
    assert (world.waited, world.asked) == ([10, 11, 12, 13], [14])


def test_a_body_that_has_come_is_read_without_a_call() -> None:
    world = World()
    made = world.hand_over(0, 20)
    world.read(made, 0, 1, 2, 3)
    assert world.bodies.find(TransactionId(4)) is None
    world.answer()
    assert world.bodies.find(TransactionId(4)) == b"4"
    world.read(made, 4)
    assert (world.waited, world.asked) == ([0, 1, 2, 3], [4, 5])


def test_a_body_that_is_under_way_is_waited_for() -> None:
    world = World()
    made = world.hand_over(0, 20)
    world.read(made, 0, 1, 2, 3, 4)
    assert (world.waited, world.asked) == ([0, 1, 2, 3, 4], [4, 5])


def test_an_application_that_leaves_bodies_out_has_none_requested_ahead() -> None:
    world = World()
    made = world.hand_over(0, 100)
    world.read(made, *range(0, 100, 2))
    assert world.asked == []


def test_a_body_that_is_left_out_begins_the_count_anew() -> None:
    world = World()
    made = world.hand_over(0, 100)
    world.read(made, *range(8))
    asked = len(world.asked)
    world.read(made, 9, 10, 11)
    assert len(world.asked) == asked
    world.read(made, 12)
    assert len(world.asked) == asked + 1


def test_data_that_is_here_already_is_not_left_out() -> None:
    """PM-31: an application's own transactions stand between those of others."""
    world = World()
    made = world.hand_over(0, 20, with_data=range(0, 20, 2))
    world.read(made, *range(8))
    assert (world.waited, world.asked) == ([1, 3, 5, 7], [9])


def test_the_count_goes_on_with_the_next_transactions() -> None:
    world = World()
    world.read(world.hand_over(0, 3), 0, 1, 2)
    world.bodies.end()
    world.read(world.hand_over(3, 3), 3)
    assert world.asked == [4]


def test_transactions_whose_end_was_not_read_begin_the_count_anew() -> None:
    world = World()
    world.read(world.hand_over(0, 8), 0, 1, 2, 3, 4, 5, 6)
    world.bodies.end()
    asked = list(world.asked)
    world.read(world.hand_over(8, 8), 8, 9, 10)
    assert world.asked == asked


def test_what_is_tried_again_is_not_requested_again() -> None:
    """PM-38."""
    world = World()
    made = world.hand_over(0, 20)
    world.read(made, 0, 1, 2, 3)
    world.answer()
    left = made.after(TransactionId(2))
    world.bodies.begin(left)
    world.read(left, 3, 4)
    assert (world.waited, world.asked) == ([0, 1, 2, 3], [4, 5])


def test_bodies_that_nobody_read_are_forgotten_with_their_transactions() -> None:
    world = World()
    world.read(world.hand_over(0, 20), 0, 1, 2, 3)
    world.answer()
    world.bodies.end()
    world.hand_over(20, 20)
    assert world.bodies.find(TransactionId(4)) is None


def test_an_error_is_that_of_its_own_call() -> None:
    world = World()
    made = world.hand_over(0, 20)
    world.read(made, 0, 1, 2)
    world.error = OperationTimeoutError("no answer")
    with pytest.raises(OperationTimeoutError):
        world.read(made, 3)
    world.error = None
    world.read(made, 3)
    assert world.waited == [0, 1, 2, 3, 3]


def test_number_and_size_of_what_is_requested_ahead_are_bounded() -> None:
    for size, expected in (1, BODIES_AHEAD_MAX), (BODIES_AHEAD_BYTES_MAX // 10, 10):
        world = World(size)
        made = world.hand_over(0, 3_000)
        for number in range(2_000):
            world.read(made, number)
            world.answer()
            assert len(world.asked) - number <= expected
        assert len(world.asked) + len(world.waited) > 2_000 + expected // 2 - 4


def test_what_is_requested_for_nothing_is_a_share_of_what_is_read() -> None:
    for seed in range(300):
        random = Random(seed)
        world, first, read = World(), 0, 0
        for _ in range(random.randint(1, 10)):
            count = random.randint(1, 60)
            made = world.hand_over(first, count)
            leaves_out = random.choice([0.0, 0.02, 0.1, 0.5])
            for number in range(first, first + count):
                if random.random() >= leaves_out:
                    world.read(made, number)
                    read += 1
                if random.random() < 0.5:
                    world.answer()
            world.bodies.end()
            first += count
        asked, waited = len(world.asked), len(world.waited)
        assert len(set(world.asked)) == asked, seed
        joined = len({*world.asked} & {*world.waited})
        useless = asked + waited - joined - read
        assert useless * BODIES_READ_PER_BODY_AHEAD <= read, seed
