"""The participant that keeps the customers' accounts."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from fastapi import HTTPException
from pydantic import BaseModel, Field

from examples.shop.two_phase.participant import Order, Participant, changing, reading

ACCOUNTS: Final = """CREATE TABLE IF NOT EXISTS accounts (number INTEGER PRIMARY KEY,
    deposited INTEGER NOT NULL, balance INTEGER NOT NULL CHECK (balance >= 0))"""


class Account(BaseModel):
    """A customer's account, opened with a deposit in cents."""

    number: int = Field(ge=1, lt=2**31)
    deposited: int = Field(ge=0, lt=2**53)


class Payments(Participant):
    """Holds money for orders."""

    def hold(self, database: sqlite3.Connection, order: Order) -> str | None:
        taken = database.execute(
            "UPDATE accounts SET balance = balance - ? WHERE number = ? AND balance >= ?",
            (order.amount, order.account, order.amount),
        )
        return None if taken.rowcount else "declined"

    def release(self, database: sqlite3.Connection, order: Order) -> None:
        database.execute(
            "UPDATE accounts SET balance = balance + ? WHERE number = ?",
            (order.amount, order.account),
        )


payments = Payments("payments", ACCOUNTS)
app = payments.app


@app.post("/accounts", status_code=201)
def open_account(account: Account) -> Account:
    """Open an account; the same request again gets the same answer."""
    with changing(payments.path) as database:
        row = (account.number, account.deposited, account.deposited)
        database.execute("INSERT OR IGNORE INTO accounts VALUES (?, ?, ?)", row)
        found = database.execute("SELECT * FROM accounts WHERE number = ?", row[:1]).fetchone()
    if found["deposited"] != account.deposited:
        raise HTTPException(409, f"account {account.number} has {found['deposited']} deposited")
    return account


@app.get("/accounts/{number}")
def get_account(number: int) -> dict[str, Any]:
    with reading(payments.path) as database:
        row = database.execute("SELECT * FROM accounts WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise HTTPException(404, f"there is no account {number}")
    return dict(row)
