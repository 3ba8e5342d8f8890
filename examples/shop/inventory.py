"""The service of the inventory: reserves pieces for orders, and takes them back if nobody pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sql
from fastapi import HTTPException, Request
from pydantic import BaseModel, Field

import waltz
from examples.shop.service import (
    JSON,
    Decision,
    Service,
    advance,
    find,
    next_steps,
    order_table,
)

STATES: Final = ("placed", "reserved", "sold out", "paid", "declined", "returned")
"""The states of an order here: `placed` waits for pieces, `declined` for their return."""

TABLES: Final = sql.MetaData()
ORDER: Final = order_table(TABLES)
ITEM: Final = sql.Table(
    "items",
    TABLES,
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("delivered", sql.BigInteger, nullable=False),
    sql.Column("stock", sql.BigInteger, nullable=False),
    sql.Column("place", sql.BigInteger, nullable=False),
)


class Item(BaseModel):
    """An item that comes into the shop, with its pieces."""

    number: int = Field(ge=1, lt=2**31)
    delivered: int = Field(ge=0, lt=2**40)


class AddItem(Decision):
    """Adds an item, unless it is there."""

    def __init__(self, engine: sql.Engine, item: Item) -> None:
        super().__init__(item.number)
        self.engine, self.item = engine, item

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        if find(self.engine, ITEM, self.number) is not None:
            return False
        builder.set_write_locks([waltz.PartitionLocalLock("item", self.number)])
        builder.set_transaction_data([{"step": "delivered", **self.item.model_dump()}], JSON)
        return True


class Settle(Decision):
    """Decides all orders that wait for an item. The write lock refuses a decision on a stock that
    is not the newest, and the client decides again on the newer one."""

    def __init__(self, engine: sql.Engine, item: int) -> None:
        super().__init__(item)
        self.engine = engine

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        item, of_item = find(self.engine, ITEM, self.number), ORDER.c.item == self.number
        stock = item["stock"] if item else 0
        steps = next_steps(self.engine, ORDER, "declined", of_item, "returned")
        stock += sum(step["pieces"] for step in steps)
        for step in next_steps(self.engine, ORDER, "placed", of_item, "reserved"):
            if step["pieces"] <= stock:
                stock -= step["pieces"]
            else:
                step["step"] = "sold out"
            steps.append(step)
        builder.set_write_locks([waltz.PartitionLocalLock("item", self.number)])
        builder.set_transaction_data(steps, JSON)
        return bool(steps)


class Inventory(Service):
    """Keeps the stock of each item."""

    def apply_step(self, connection: sql.Connection, step: dict[str, Any], place: int) -> None:
        name = step["step"]
        if name == "delivered":
            row = {each: step[each] for each in ("number", "delivered")}
            added = ITEM.insert().values(row | {"stock": step["delivered"], "place": place})
            connection.execute(added)
        if name in STATES:
            advance(connection, ORDER, STATES, step, place)
        if name in ("reserved", "returned"):
            pieces = step["pieces"] if name == "returned" else -step["pieces"]
            this = ITEM.update().where(ITEM.c.number == step["item"])
            connection.execute(this.values(stock=ITEM.c.stock + pieces))

    def work(self) -> Sequence[Decision]:
        waits = ORDER.c.state.in_(("placed", "declined"))
        with self.engine.connect() as connection:
            items = connection.execute(sql.select(ORDER.c.item).where(waits).distinct())
            return [Settle(self.engine, item) for item in items.scalars()]


inventory = Inventory("inventory", TABLES)
app = inventory.app


@app.post("/items", status_code=201)
async def add_item(item: Item, request: Request) -> Item:
    """Add an item; the same request again gets the same answer."""
    row = await inventory.answer(request, AddItem(inventory.engine, item), ITEM)
    added = Item.model_validate(row)
    if added != item:
        raise HTTPException(409, f"item {item.number} was added with {added.delivered} pieces")
    return added


@app.get("/items/{number}")
def get_item(number: int) -> dict[str, Any]:
    return inventory.show(ITEM, number)


@app.get("/orders/{number}")
def get_order(number: int) -> dict[str, Any]:
    return inventory.show(ORDER, number)
