"""The load as data: items, accounts and orders, each drawn from a seed and its number.

The load generator sends them and the judge compares with them, so neither has to trust the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

PIECES_MAX = 5
CENTS_PER_PIECE_MAX = 2_000
SOLD_SHARE = 0.8
PAID_SHARE = 0.85
"""Shares of the wanted pieces and of their price that are there: some orders must fail."""


@dataclass(frozen=True, slots=True)
class Load:
    """The orders of a run, by its seed; few `items` and `accounts` make for contention."""

    seed: int
    orders: int
    items: int = 5
    accounts: int = 20

    def order(self, number: int) -> dict[str, int]:
        """Return the order with a number from 1 to `orders`."""
        random = Random(self.seed << 40 | number)
        pieces = random.randint(1, PIECES_MAX)
        return {
            "number": number,
            "account": random.randint(1, self.accounts),
            "item": random.randint(1, self.items),
            "pieces": pieces,
            "amount": pieces * random.randint(100, CENTS_PER_PIECE_MAX),
        }

    def item(self, number: int) -> dict[str, int]:
        """Return the item with a number from 1 to `items`."""
        wanted = self.orders * (1 + PIECES_MAX) / 2 / self.items
        return {"number": number, "delivered": int(wanted * SOLD_SHARE)}

    def account(self, number: int) -> dict[str, int]:
        """Return the account with a number from 1 to `accounts`."""
        price = (1 + PIECES_MAX) / 2 * (100 + CENTS_PER_PIECE_MAX) / 2
        spent = self.orders * SOLD_SHARE * price / self.accounts
        return {"number": number, "deposited": int(spent * PAID_SHARE)}
