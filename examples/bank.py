"""A bank: accounts in a SQL database, which any number of its processes share, fed by the log.

    python examples/bank.py --cluster 127.0.0.1:7100 --database sqlite:///bank.db
    python examples/orders.py 1000 | python examples/bank.py

An account belongs to the branch number // 100, and a branch to a partition: money moves within it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from threading import Event

import sqlalchemy as sql

import waltz

Number = int | None
JSON, BRANCH = waltz.JsonSerializer(), 100
ACCOUNT = sql.Table(
    "accounts",
    sql.MetaData(),
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("balance", sql.BigInteger, nullable=False),
    sql.Column("active", sql.Boolean, nullable=False),
)


class Bank(waltz.SqlCallbacks):
    """Applies what is in the log; `rebuild` begins anew."""

    def __init__(self, engine: sql.Engine, *, rebuild: bool = False) -> None:
        super().__init__(engine)
        if rebuild:
            ACCOUNT.drop(engine, checkfirst=True)
            self.table.drop(engine, checkfirst=True)
        ACCOUNT.create(engine, checkfirst=True)

    def apply(self, connection: sql.Connection, transactions: Sequence[waltz.Transaction]) -> None:
        for transaction in transactions:
            entry = transaction.get_transaction_data(JSON)
            for number, amount in entry["changes"]:
                known = ACCOUNT.update().where(ACCOUNT.c.number == number)
                change = known.values(balance=ACCOUNT.c.balance + amount)
                if connection.execute(change).rowcount == 0:
                    opening = ACCOUNT.insert().values(number=number, balance=amount, active=True)
                    connection.execute(opening)
            closed = ACCOUNT.update().where(ACCOUNT.c.number.in_(entry["deactivates"]))
            connection.execute(closed.values(active=False))


class Order(waltz.TransactionContext):
    """Moves money from one account to another; None is cash. An amount of None: deactivates."""

    def __init__(self, engine: sql.Engine, source: Number, target: Number, amount: Number) -> None:
        if amount is not None and amount <= 0:
            raise ValueError("an amount is positive")
        self.engine, self.source, self.target, self.amount = engine, source, target, amount
        self.accounts = [number for number in (source, target) if number is not None]
        self.answer, self.ended = "unknown", Event()

    def partition_id(self, partition_count: int) -> int:
        return self.accounts[0] // BRANCH % partition_count

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        locks = [waltz.PartitionLocalLock("account", number) for number in self.accounts]
        changes: list[tuple[int, int]] = []
        if self.amount is None:
            builder.set_write_locks(locks)
        else:
            states = [find(self.engine, number) for number in self.accounts]
            if self.accounts[0] // BRANCH != self.accounts[-1] // BRANCH:
                return self.end("the accounts are of two branches")
            if not all(is_active for _, is_active in states):
                return self.end("an account is not active")
            if self.source is not None:  # deposits need no lock: they invalidate nothing
                if states[0][0] < self.amount:
                    return self.end("the balance is too low")
                builder.set_write_locks([waltz.PartitionLocalLock("withdrawal", self.source)])
                builder.set_read_locks(locks)
                changes.append((self.source, -self.amount))
            if self.target is not None:
                changes.append((self.target, self.amount))
        deactivates = self.accounts if self.amount is None else []
        builder.set_transaction_data({"changes": changes, "deactivates": deactivates}, JSON)
        return True

    def on_application(self) -> None:
        self.end("done")

    def on_exception(self, error: Exception) -> None:
        self.end(f"failed: {error}")

    def end(self, answer: str) -> bool:
        self.answer = answer
        self.ended.set()
        return False


def find(engine: sql.Engine, number: int) -> tuple[int, bool]:
    """Return the balance of an account, and whether it is active; unknown ones are, and empty."""
    with engine.connect() as connection:
        row = connection.execute(ACCOUNT.select().where(ACCOUNT.c.number == number)).first()
    return (row.balance, row.active) if row else (0, True)


def talk(client: waltz.WaltzClient, engine: sql.Engine, lines: Iterable[str]) -> Iterator[str]:
    """Carry out one command after the other, as `transfer 1 2 50`, and yield the answers."""
    for line in lines:
        try:
            match line.split():
                case ["deposit", number, amount]:
                    order = Order(engine, None, int(number), int(amount))
                case ["withdraw", number, amount]:
                    order = Order(engine, int(number), None, int(amount))
                case ["transfer", source, target, amount] if source != target:
                    order = Order(engine, int(source), int(target), int(amount))
                case ["deactivate", number]:
                    order = Order(engine, int(number), None, None)
                case ["balance", number]:
                    yield str(find(engine, int(number))[0])
                    continue
                case ["quit"]:
                    return
                case _:
                    raise ValueError("deposit, withdraw, transfer, balance, deactivate or quit")
            client.submit(order)
            order.ended.wait()
            yield order.answer
        except (ValueError, waltz.WaltzError) as error:
            yield f"not done: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="127.0.0.1:7100")
    parser.add_argument("--database", default="sqlite:///bank.db")
    parser.add_argument("--rebuild", action="store_true", help="make the tables anew from the log")
    options = parser.parse_args()
    engine = sql.create_engine(options.database)
    with waltz.open_client(options.cluster, Bank(engine, rebuild=options.rebuild)) as client:
        client.wait_until_applied()
        for answer in talk(client, engine, sys.stdin):
            print(answer, flush=True)


if __name__ == "__main__":
    main()
