"""The participant that keeps the stock."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from fastapi import HTTPException
from pydantic import BaseModel, Field

from examples.shop.two_phase.participant import Order, Participant, changing, reading

ITEMS: Final = """CREATE TABLE IF NOT EXISTS items (number INTEGER PRIMARY KEY,
    delivered INTEGER NOT NULL, stock INTEGER NOT NULL CHECK (stock >= 0))"""


class Item(BaseModel):
    """An item that comes into the shop, with its pieces."""

    number: int = Field(ge=1, lt=2**31)
    delivered: int = Field(ge=0, lt=2**40)


class Inventory(Participant):
    """Holds pieces for orders."""

    def hold(self, database: sqlite3.Connection, order: Order) -> str | None:
        taken = database.execute(
            "UPDATE items SET stock = stock - ? WHERE number = ? AND stock >= ?",
            (order.pieces, order.item, order.pieces),
        )
        return None if taken.rowcount else "sold out"

    def release(self, database: sqlite3.Connection, order: Order) -> None:
        database.execute(
            "UPDATE items SET stock = stock + ? WHERE number = ?", (order.pieces, order.item)
        )


inventory = Inventory("inventory", ITEMS)
app = inventory.app


@app.post("/items", status_code=201)
def add_item(item: Item) -> Item:
    """Add an item; the same request again gets the same answer."""
    with changing(inventory.path) as database:
        row = (item.number, item.delivered, item.delivered)
        database.execute("INSERT OR IGNORE INTO items VALUES (?, ?, ?)", row)
        found = database.execute("SELECT * FROM items WHERE number = ?", row[:1]).fetchone()
    if found["delivered"] != item.delivered:
        raise HTTPException(409, f"item {item.number} was added with {found['delivered']} pieces")
    return item


@app.get("/items/{number}")
def get_item(number: int) -> dict[str, Any]:
    with reading(inventory.path) as database:
        row = database.execute("SELECT * FROM items WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise HTTPException(404, f"there is no item {number}")
    return dict(row)
