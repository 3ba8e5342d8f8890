"""Finds the first transaction after which a test of a fold fails.

Owns the search, and what is kept to resume it. The log is read in order, once, and the state is
tested now and then; the stretch in which the test begins to fail is halved, from a copy of the
state before it. Knows no cluster: transactions come from a function.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Any, Final, Protocol

from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError

TESTED_EVERY: Final = 10_000
"""Transactions between two tests, unless the user says otherwise."""

Read = Callable[[int, int], Iterable[Transaction]]
"""Yields the transactions from an ID to before another one."""


class Fold(Protocol):
    """A state that transactions change, in order."""

    def apply_transaction(self, transaction: Transaction) -> object: ...


Test = Callable[[Any], object]
"""Says whether all is well with a state. It fails if it raises AssertionError or returns a false
value other than None, which a function returns that only asserts."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The pickled `state` after all transactions before `position`, for which the test holds."""

    position: int
    state: bytes


def holds(test: Test, state: object) -> bool:
    """Whether the test holds for `state`. Raises ConfigurationError: the test raised another error
    than AssertionError."""
    try:
        found = test(state)
    except AssertionError:
        return False
    except Exception as error:
        raise ConfigurationError(f"the test raised {where_raised(error)}") from error
    return found is None or bool(found)


def where_raised(error: Exception) -> str:
    """Return an error of the user's code with the line that raised it."""
    *_, last = extract_tb(error.__traceback__)
    return f"{error!r} ({last.filename}:{last.lineno})"


def pickled(state: object) -> bytes:
    """Return a copy of `state`. Raises ConfigurationError: it cannot be pickled."""
    try:
        return pickle.dumps(state)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the state, a {type(state).__name__}, cannot be copied with pickle: {error}. Keep in"
            " the state only what can be, or define __getstate__ and __setstate__"
        ) from error


class Bisection:
    """A search from a checkpoint on; `checkpoint` moves on while the test holds."""

    def __init__(self, read: Read, test: Test, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._read = read
        self._test = test

    def advance(self, end: int, every: int) -> int | None:
        """Apply up to `every` transactions more, none from `end` on, and test; return the ID of
        the first transaction after which the test fails, None if the test holds.

        If the test holds again after it fails, the one that is found is one after which it begins
        to fail, and perhaps not the first. Raises ConfigurationError: the state or the test raised
        an error.
        """
        low, high = self.checkpoint.position, min(self.checkpoint.position + every, end)
        if self._test_after(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._test_after(middle):
                low = middle
            else:
                high = middle
        return high - 1

    def _test_after(self, end: int) -> bool:
        """Apply the transactions before `end`, from the checkpoint on, to a copy; the copy is the
        next checkpoint if the test holds."""
        state: Any = pickle.loads(self.checkpoint.state)  # noqa: S301 - pickled by this program
        for transaction in self._read(self.checkpoint.position, end):
            try:
                state.apply_transaction(transaction)
            except Exception as error:
                raise ConfigurationError(
                    f"apply_transaction raised {where_raised(error)} for transaction"
                    f" {transaction.transaction_id}"
                ) from error
        if not holds(self._test, state):
            return False
        self.checkpoint = Checkpoint(end, pickled(state))
        return True


@dataclass(frozen=True, slots=True)
class Saved:
    """A search that can be resumed: whose it is, and how far it has come."""

    cluster_key: str
    partition_id: int
    state_name: str
    test_name: str
    first: int
    checkpoint: Checkpoint

    def is_same_search(self, other: Saved) -> bool:
        return replace(self, checkpoint=other.checkpoint) == other
