"""The shop on Waltz: whatever is killed, the judge finds nothing wrong; what is wrong, it finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import sqlalchemy as sql

from examples.shop.trial.drawing import Load
from examples.shop.trial.judge import (
    THINGS,
    Findings,
    Rows,
    judge_databases,
    judge_databases_by_log,
    judge_log,
)
from examples.shop.trial.waltz_trial import Plan, run_on_waltz
from tests.databases import running_database

LOAD = Load(seed=10, orders=3, items=1, accounts=1)
Log = list[tuple[int, int, bytes]]
Step = dict[str, int | str]


def run(
    directory: Path,
    *,
    orders: int,
    kills: int,
    seed: int,
    databases: Mapping[str, str] | None = None,
) -> None:
    # As many orders per item in a long run as in a short one: else none is ever sold out, since
    # orders that cannot be paid give their pieces back.
    load = Load(seed, orders, items=orders // 40)
    plan = Plan(load, directory, kills=kills, databases=databases or {})
    result = asyncio.run(run_on_waltz(plan, print))
    assert result.wrong == []
    assert result.orders == sum(result.states.values()) == orders
    assert set(result.states) == {"paid", "sold out", "declined"}
    assert sum(result.kills.values()) == kills
    assert result.counts["orders sent again"] > 0
    assert result.counts["reads with a token"] >= orders


@pytest.mark.processes
def test_the_shop_keeps_its_word_while_its_processes_are_killed(tmp_path: Path) -> None:
    run(tmp_path, orders=80, kills=3, seed=1)


@pytest.mark.long
@pytest.mark.processes
def test_the_services_keep_their_word_on_postgresql(tmp_path: Path) -> None:
    with running_database("postgresql") as server:
        engine = sql.create_engine(server.url(server.first), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for name in THINGS:
                connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        urls = {name: server.url(name).render_as_string(hide_password=False) for name in THINGS}
        run(tmp_path, orders=200, kills=5, seed=4, databases=urls)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(3_600)
def test_the_shop_keeps_its_word_for_10_000_orders(tmp_path: Path) -> None:
    run(tmp_path, orders=10_000, kills=40, seed=2)


def step(name: str, number: int, **changes: int) -> Step:
    return {"step": name, **LOAD.order(number), **changes}


STOCKED: list[Step] = [
    {"step": "delivered", **LOAD.item(1)},
    {"step": "deposited", **LOAD.account(1)},
]
ORDERED: list[Step] = [
    step("placed", 1), step("placed", 2), step("placed", 3),
    step("reserved", 1), step("sold out", 2), step("reserved", 3),
    step("paid", 1), step("declined", 3), step("returned", 3),
]  # fmt: skip


def log_of(*steps: Step) -> Log:
    """Return a log with one step per transaction, each in the partition of its thing."""
    homes = {"delivered": 0, "deposited": 1, "placed": 2, "paid": 1, "declined": 1}
    return [
        (homes.get(str(each["step"]), 0), place, json.dumps([each]).encode())
        for place, each in enumerate(steps)
    ]


def rows() -> dict[str, Rows]:
    """Return what the databases have after `STOCKED` and `ORDERED`."""
    content = {
        number: tuple(LOAD.order(number)[name] for name in ("account", "item", "pieces", "amount"))
        for number in (1, 2, 3)
    }

    def orders(*states: str) -> dict[int, tuple[str, tuple[int, ...]]]:
        return {number: (state, content[number]) for number, state in enumerate(states, 1) if state}

    delivered, deposited = LOAD.item(1)["delivered"], LOAD.account(1)["deposited"]
    return {
        "orders": Rows(orders("paid", "sold out", "declined"), {}),
        "inventory": Rows(
            orders("paid", "sold out", "returned"),
            {1: (delivered, delivered - LOAD.order(1)["pieces"])},
        ),
        "payments": Rows(
            orders("paid", "", "declined"), {1: (deposited, deposited - LOAD.order(1)["amount"])}
        ),
    }


def judged(log: Log, found: dict[str, Rows], confirmed: bytes = b"\0\1\1\1") -> set[str]:
    """Return the kinds of findings."""
    findings = Findings()
    judge_databases(found, LOAD, confirmed, findings)
    judge_databases_by_log(found, judge_log(log, LOAD, findings), findings)
    return set(findings.wrong)


def test_the_judge_finds_nothing_where_nothing_is_wrong() -> None:
    assert judged(log_of(*STOCKED, *ORDERED), rows()) == set()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda steps: [*steps, step("placed", 1)], "a step twice"),
        (lambda steps: [*steps, step("paid", 3)], "an order without exactly one end"),
        (lambda steps: steps[:-1], "an order without exactly one end"),
        (lambda steps: steps[:-2], "an order without exactly one end"),
        (lambda steps: [step("reserved", 1), *steps], "stock below zero"),
        (lambda steps: [step("paid", 1), *steps], "a balance below zero"),
        (lambda steps: [*steps, *STOCKED[:1]], "an item twice"),
        (lambda steps: [*steps, *STOCKED[1:]], "an account twice"),
        (lambda steps: [*steps[:-1], step("returned", 3, pieces=9)], "other content than sent"),
        (lambda steps: [*steps, step("lost", 1)], "a step that nobody has asked for"),
        (
            lambda steps: [each for each in steps if each["number"] != 2],
            "orders of the database are not those of the log",
        ),
    ],
)
def test_the_judge_finds_what_is_wrong_in_the_log(
    change: Callable[[list[Step]], list[Step]], kind: str
) -> None:
    assert kind in judged(log_of(*change([*STOCKED, *ORDERED])), rows())


def test_the_judge_finds_one_thing_that_is_decided_in_two_partitions() -> None:
    log = log_of(*STOCKED, *ORDERED)
    place = next(at for at, (_, _, data) in enumerate(log) if b"returned" in data)
    log[place] = (3, *log[place][1:])
    assert "one thing in two partitions" in judged(log, rows())


def lose_order(found: dict[str, Rows]) -> None:
    del found["orders"].orders[2]


def pay_without_goods(found: dict[str, Rows]) -> None:
    orders = found["inventory"].orders
    orders[1] = ("returned", orders[1][1])


def take_a_cent(found: dict[str, Rows]) -> None:
    found["payments"].things[1] = (
        found["payments"].things[1][0],
        found["payments"].things[1][1] - 1,
    )


def sell_more_than_there_is(found: dict[str, Rows]) -> None:
    found["inventory"].things[1] = (0, -LOAD.order(1)["pieces"])


def leave_one_open(found: dict[str, Rows]) -> None:
    orders = found["orders"].orders
    orders[2] = ("reserved", orders[2][1])


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lose_order, {"a confirmed order is lost", "the database disagrees with the log"}),
        (pay_without_goods, {"paid in one service and not in another", "stock does not add up"}),
        (take_a_cent, {"money made or lost", "balance does not add up"}),
        (sell_more_than_there_is, {"stock below zero"}),
        (leave_one_open, {"an order without exactly one end"}),
    ],
)
def test_the_judge_finds_what_is_wrong_in_the_databases(
    change: Callable[[dict[str, Rows]], None], kinds: set[str]
) -> None:
    found = rows()
    change(found)
    assert kinds <= judged(log_of(*STOCKED, *ORDERED), found)
