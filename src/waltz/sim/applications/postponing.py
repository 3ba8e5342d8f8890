"""An application that applies a part of a batch, and asks for the rest later.

Owns where it stops. In everything else it is the simulated application: what it has applied is
durable, and is reported as applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.sim.applications.application import Application
from waltz.sim.judges.history import History
from waltz.sim.judges.run_trace import RunTrace

POSTPONED_SHARE: Final = 0.4
"""Share of the batches that are postponed in part."""

DELAY_SECONDS: Final = (0.0, 0.01, 1.0)


class PostponingApplication(Application):
    """Takes batches, and fetches their data once it knows what it will apply: the feed brings
    headers only."""

    prefetch = False

    def __init__(
        self,
        name: str,
        history: History,
        trace: RunTrace,
        now: Callable[[], float],
        random: Random,
    ) -> None:
        super().__init__(name, history, trace, now)
        self._random = random

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        return transactions

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        """Apply all of them, or the first ones, or none. Raises PostponedError."""
        count = len(transactions)
        is_postponed = self._random.random() < POSTPONED_SHARE
        if is_postponed:
            count = self._random.randint(0, count)
        last = transactions[0].transaction_id - 1
        for position in range(count):
            self.apply_transaction(transactions[position])
            last = transactions[position].transaction_id
        if is_postponed:
            self.note("postponed", self.name, transactions[0].partition_id, last)
            raise PostponedError("in a while", self._random.choice(DELAY_SECONDS), last)
