"""The service of payments: takes the money for reserved orders from the customers' accounts."""

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

STATES: Final = ("reserved", "paid", "declined")
"""The states of an order here: `reserved` waits for the money."""

TABLES: Final = sql.MetaData()
ORDER: Final = order_table(TABLES)
ACCOUNT: Final = sql.Table(
    "accounts",
    TABLES,
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("deposited", sql.BigInteger, nullable=False),
    sql.Column("balance", sql.BigInteger, nullable=False),
    sql.Column("place", sql.BigInteger, nullable=False),
)


class Account(BaseModel):
    """A customer's account, opened with a deposit in cents."""

    number: int = Field(ge=1, lt=2**31)
    deposited: int = Field(ge=0, lt=2**53)


class OpenAccount(Decision):
    """Opens an account, unless it is open."""

    def __init__(self, engine: sql.Engine, account: Account) -> None:
        super().__init__(account.number)
        self.engine, self.account = engine, account

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        if find(self.engine, ACCOUNT, self.number) is not None:
            return False
        builder.set_write_locks([waltz.PartitionLocalLock("account", self.number)])
        builder.set_transaction_data([{"step": "deposited", **self.account.model_dump()}], JSON)
        return True


class Charge(Decision):
    """Takes the money for all reserved orders of an account. The write lock refuses a decision on a
    balance that is not the newest, and the client decides again on the newer one."""

    def __init__(self, engine: sql.Engine, account: int) -> None:
        super().__init__(account)
        self.engine = engine

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        account = find(self.engine, ACCOUNT, self.number)
        balance, of_account = account["balance"] if account else 0, ORDER.c.account == self.number
        steps = next_steps(self.engine, ORDER, "reserved", of_account, "paid")
        for step in steps:
            if step["amount"] <= balance:
                balance -= step["amount"]
            else:
                step["step"] = "declined"
        builder.set_write_locks([waltz.PartitionLocalLock("account", self.number)])
        builder.set_transaction_data(steps, JSON)
        return bool(steps)


class Payments(Service):
    """Keeps the balance of each account."""

    def apply_step(self, connection: sql.Connection, step: dict[str, Any], place: int) -> None:
        if step["step"] == "deposited":
            row = {each: step[each] for each in ("number", "deposited")}
            opened = ACCOUNT.insert().values(row | {"balance": step["deposited"], "place": place})
            connection.execute(opened)
        if step["step"] in STATES:
            advance(connection, ORDER, STATES, step, place)
        if step["step"] == "paid":
            this = ACCOUNT.update().where(ACCOUNT.c.number == step["account"])
            connection.execute(this.values(balance=ACCOUNT.c.balance - step["amount"]))

    def work(self) -> Sequence[Decision]:
        waits = ORDER.c.state == "reserved"
        with self.engine.connect() as connection:
            accounts = connection.execute(sql.select(ORDER.c.account).where(waits).distinct())
            return [Charge(self.engine, account) for account in accounts.scalars()]


payments = Payments("payments", TABLES)
app = payments.app


@app.post("/accounts", status_code=201)
async def open_account(account: Account, request: Request) -> Account:
    """Open an account; the same request again gets the same answer."""
    row = await payments.answer(request, OpenAccount(payments.engine, account), ACCOUNT)
    opened = Account.model_validate(row)
    if opened != account:
        raise HTTPException(409, f"account {account.number} was opened with {opened.deposited}")
    return opened


@app.get("/accounts/{number}")
def get_account(number: int) -> dict[str, Any]:
    return payments.show(ACCOUNT, number)
