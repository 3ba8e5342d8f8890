"""The service of orders: takes them, and follows what becomes of each.

An order is placed by one transaction. Inventory answers it with `reserved` or `sold out`, and
payments a reserved one with `paid` or `declined`: each service decides about what is its own, and
all learn of it from the log.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from fastapi import HTTPException, Request
from pydantic import BaseModel, Field

import waltz
from examples.shop.service import JSON, Decision, Service, advance, find, order_table

STATES: Final = ("placed", "reserved", "sold out", "paid", "declined")
"""The states of an order: a later one replaces an earlier one. The last three are ends."""

TABLES: Final = sql.MetaData()
ORDER: Final = order_table(TABLES)


class Order(BaseModel):
    """An order as the shop's front end sends it; the number is the front end's, and the key."""

    number: int = Field(ge=1, lt=2**53)
    account: int = Field(ge=1, lt=2**31)
    item: int = Field(ge=1, lt=2**31)
    pieces: int = Field(ge=1, le=1_000)
    amount: int = Field(ge=1, lt=2**40, description="in cents, for all pieces")


class PlaceOrder(Decision):
    """Places an order, unless there is one with its number: of two at once the write lock lets one
    into the log, and the other one finds it."""

    def __init__(self, engine: sql.Engine, order: Order) -> None:
        super().__init__(order.number)
        self.engine, self.order = engine, order

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        found = find(self.engine, ORDER, self.number)
        if found is not None and found["place"] is not None:
            return False
        builder.set_write_locks([waltz.PartitionLocalLock("order", self.number)])
        builder.set_transaction_data([{"step": "placed", **self.order.model_dump()}], JSON)
        return True


class Orders(Service):
    """Keeps the newest state of each order."""

    def apply_step(self, connection: sql.Connection, step: dict[str, Any], place: int) -> None:
        if step["step"] in STATES:
            advance(connection, ORDER, STATES, step, place)


orders = Orders("orders", TABLES)
app = orders.app


@app.post("/orders", status_code=201)
async def place_order(order: Order, request: Request) -> Order:
    """Place an order; the same request again gets the same answer."""
    row = await orders.answer(request, PlaceOrder(orders.engine, order), ORDER)
    placed = Order.model_validate(row)
    if placed != order:
        raise HTTPException(409, f"order {order.number} was placed with other content")
    return placed


@app.get("/orders/{number}")
def get_order(number: int) -> dict[str, Any]:
    return orders.show(ORDER, number)
