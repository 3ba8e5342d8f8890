"""The participant that keeps the orders."""

from __future__ import annotations

import sqlite3

from examples.shop.two_phase.participant import Order, Participant


class Orders(Participant):
    """Holds nothing: an order that is new can always be."""

    def hold(self, database: sqlite3.Connection, order: Order) -> str | None:
        return None

    def release(self, database: sqlite3.Connection, order: Order) -> None:
        pass


app = Orders("orders").app
