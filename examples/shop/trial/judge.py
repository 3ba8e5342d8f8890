"""The judge: decides from the log's bytes and the databases' rows whether the shop kept its word.

It shares nothing with the services: it has its own account of what each step means, and compares
the log with that, the databases with each other, and the databases with the log. Without a log, as
in the two-phase version, it judges the databases alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sql

from examples.shop.trial.drawing import Load
from waltz import open_reader

STEPS: Final = ("placed", "reserved", "sold out", "paid", "declined", "returned")
BITS: Final = {step: 1 << place for place, step in enumerate(STEPS)}


def bits(*steps: str) -> int:
    return sum(BITS[step] for step in steps)


LIVES: Final = {
    bits("placed", "sold out"): "sold out",
    bits("placed", "reserved", "paid"): "paid",
    bits("placed", "reserved", "declined", "returned"): "declined",
}
"""The steps that an order may have had in the end, each once, and what has become of it then."""

SHOWN_MAX: Final = 10
"""Findings of a kind that are shown; the others are counted."""


@dataclass
class Findings:
    """The faults that were found, by kind, and the number of facts that were checked."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    checked: int = 0

    def check(self, is_right: bool, kind: str, text: str) -> None:
        self.checked += 1
        if not is_right:
            self.counts[kind] += 1
            if len(self.wrong[kind]) < SHOWN_MAX:
                self.wrong[kind].append(text)

    def lines(self) -> Iterator[str]:
        for kind, texts in self.wrong.items():
            yield f"{kind}: {self.counts[kind]}"
            yield from (f"    {text}" for text in texts)


@dataclass
class LogState:
    """The orders, the stock and the balances that the log alone says."""

    transactions: int = 0
    lives: dict[int, int] = field(default_factory=dict)
    """The bits of the steps of each order."""
    stock: dict[int, int] = field(default_factory=dict)
    balances: dict[int, int] = field(default_factory=dict)
    deposited: int = 0
    paid: int = 0


def read_log(cluster: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield partition, ID and data of each transaction, partition by partition, in order."""
    with open_reader(cluster) as reader:
        for partition in range(reader.partition_count):
            end, place = reader.high_water_mark(partition) + 1, 0
            for columns in reader.read(partition, 0, end):
                for data in columns.data:
                    yield partition, place, bytes(data)
                    place += 1


def judge_log(log: Iterable[tuple[int, int, bytes]], load: Load, findings: Findings) -> LogState:
    """Return what the log says; a thing's steps are all in one partition, so their order is the
    order in which they happened."""
    state = LogState()
    homes: dict[tuple[str, int], int] = {}
    for partition, place, data in log:
        state.transactions += 1
        for step in json.loads(data):
            where = f"partition {partition}, transaction {place}: {step}"
            thing = _replay(step, state, load, findings, where)
            home = homes.setdefault(thing, partition)
            findings.check(home == partition, "one thing in two partitions", where)
    for number, found in state.lives.items():
        steps = [step for step in STEPS if found & BITS[step]]
        findings.check(
            found in LIVES, "an order without exactly one end", f"order {number}: {steps}"
        )
    total = sum(state.balances.values()) + state.paid
    findings.check(
        total == state.deposited,
        "money made or lost",
        f"deposited {state.deposited}, on accounts {sum(state.balances.values())},"
        f" paid {state.paid}",
    )
    return state


def _replay(
    step: dict[str, Any], state: LogState, load: Load, findings: Findings, where: str
) -> tuple[str, int]:
    """Take one step into account; return the thing that was decided about."""
    content = dict(step)
    name, number = content.pop("step"), int(step["number"])
    if name == "delivered":
        findings.check(number not in state.stock, "an item twice", where)
        findings.check(content == load.item(number), "other content than sent", where)
        state.stock[number] = step["delivered"]
        return "item", number
    if name == "deposited":
        findings.check(number not in state.balances, "an account twice", where)
        findings.check(content == load.account(number), "other content than sent", where)
        state.balances[number] = step["deposited"]
        state.deposited += step["deposited"]
        return "account", number
    is_known = name in BITS and 1 <= number <= load.orders
    findings.check(is_known, "a step that nobody has asked for", where)
    if not is_known:
        return "unknown", number
    findings.check(content == load.order(number), "other content than sent", where)
    before = state.lives.get(number, 0)
    findings.check(not before & BITS[name], "a step twice", where)
    state.lives[number] = before | BITS[name]
    item, account = step["item"], step["account"]
    match name:
        case "placed":
            return "order", number
        case "paid" | "declined":
            if name == "paid":
                state.balances[account] = state.balances.get(account, 0) - step["amount"]
                state.paid += step["amount"]
                findings.check(state.balances[account] >= 0, "a balance below zero", where)
            return "account", account
        case "reserved":
            state.stock[item] = state.stock.get(item, 0) - step["pieces"]
            findings.check(state.stock[item] >= 0, "stock below zero", where)
        case "returned":
            state.stock[item] = state.stock.get(item, 0) + step["pieces"]
        case _:
            pass
    return "item", item


@dataclass
class Rows:
    """The rows of one service's database."""

    orders: dict[int, tuple[str, tuple[int, ...]]]
    """State, and account, item, pieces and amount, of each order."""
    things: dict[int, tuple[int, int]]
    """Items, or accounts: what came in, and what is there now."""


THINGS: Final = {
    "orders": None,
    "inventory": ("items", "delivered", "stock"),
    "payments": ("accounts", "deposited", "balance"),
}


def read_rows(databases: Mapping[str, str]) -> dict[str, Rows]:
    """Return the rows of the databases with these addresses."""
    found: dict[str, Rows] = {}
    for name, url in databases.items():
        engine = sql.create_engine(url)
        with engine.connect() as connection:
            columns = "number, state, account, item, pieces, amount"
            orders = {
                row[0]: (row[1], tuple(row[2:]))
                for row in connection.execute(sql.text(f"SELECT {columns} FROM orders"))
            }
            things: dict[int, tuple[int, int]] = {}
            if (named := THINGS[name]) is not None:
                table, came, there = named
                query = sql.text(f"SELECT number, {came}, {there} FROM {table}")
                things = {row[0]: (row[1], row[2]) for row in connection.execute(query)}
        engine.dispose()
        found[name] = Rows(orders, things)
    return found


def judge_databases(
    rows: Mapping[str, Rows], load: Load, confirmed: bytes | bytearray, findings: Findings
) -> None:
    """Judge three databases by themselves and against each other, and by what was confirmed."""
    orders, inventory, payments = (rows[name] for name in THINGS)
    for number in range(1, load.orders + 1):
        wanted = load.order(number)
        content = tuple(wanted[each] for each in ("account", "item", "pieces", "amount"))
        found = orders.orders.get(number)
        findings.check(
            bool(found) or not confirmed[number], "a confirmed order is lost", f"order {number}"
        )
        if found is None:
            continue
        findings.check(found[1] == content, "other content than sent", f"order {number}: {found}")
        findings.check(
            found[0] in LIVES.values(),
            "an order without exactly one end",
            f"order {number}: {found}",
        )
        told = {
            name: (each.orders[number][0] if number in each.orders else "nothing")
            for name, each in rows.items()
        }
        is_paid = {state == "paid" for state in told.values()}
        findings.check(
            len(is_paid) == 1, "paid in one service and not in another", f"order {number}: {told}"
        )
    for name, each in rows.items():
        strangers = [number for number in each.orders if not 1 <= number <= load.orders]
        findings.check(not strangers, "orders that nobody has sent", f"{name}: {strangers[:5]}")
    _judge_things(inventory, "stock", 1, 2, findings)
    _judge_things(payments, "balance", 0, 3, findings)
    paid = sum(content[3] for state, content in orders.orders.values() if state == "paid")
    deposited = sum(came for came, _ in payments.things.values())
    there = sum(there for _, there in payments.things.values())
    findings.check(
        deposited == there + paid,
        "money made or lost",
        f"deposited {deposited}, on accounts {there}, paid for orders {paid}",
    )


def _judge_things(rows: Rows, what: str, key: int, column: int, findings: Findings) -> None:
    """Compare what is left of items or accounts with the orders that the same database calls
    paid."""
    spent: dict[int, int] = defaultdict(int)
    for state, content in rows.orders.values():
        if state == "paid":
            spent[content[key]] += content[column]
    for number, (came, there) in rows.things.items():
        text = f"{what} of {number}: {came} came in, {spent[number]} went, {there} is there"
        findings.check(there >= 0, f"{what} below zero", text)
        findings.check(came - spent[number] == there, f"{what} does not add up", text)


def judge_databases_by_log(rows: Mapping[str, Rows], log: LogState, findings: Findings) -> None:
    """Compare the databases with what the log alone says."""
    states = {number: state for number, (state, _) in rows["orders"].orders.items()}
    findings.check(
        states.keys() == log.lives.keys(),
        "orders of the database are not those of the log",
        f"{len(states)} and {len(log.lives)}",
    )
    for number, found in log.lives.items():
        findings.check(
            states.get(number) == LIVES.get(found),
            "the database disagrees with the log",
            f"order {number}: {states.get(number)}, by the log {LIVES.get(found)}",
        )
    for name, by_log in (("inventory", log.stock), ("payments", log.balances)):
        there = {number: there for number, (_, there) in rows[name].things.items()}
        findings.check(
            there == by_log, "the database disagrees with the log", f"{name}: {there}, {by_log}"
        )
