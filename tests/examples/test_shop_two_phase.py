"""The shop with a coordinator: the judge is content with it, and finds the bug that is planted."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from examples.shop.trial.drawing import Load
from examples.shop.trial.judge import THINGS, Findings, judge_databases, read_rows
from examples.shop.trial.services import ServiceProcess, running_services
from examples.shop.trial.two_phase_trial import run_in_two_phases
from examples.shop.trial.waltz_trial import Plan, Result
from examples.shop.two_phase.inventory import Item
from examples.shop.two_phase.participant import Decide, Order, Prepare, ask
from examples.shop.two_phase.payments import Account
from tests.clusters import wait_until
from waltz.cli.trial_directory import choose_ports

LOAD = Load(seed=10, orders=1, items=1, accounts=1)
ID = 1


def decision_of(directory: Path) -> Any:
    """Return the decision that payments has; None: it is in doubt."""
    with sqlite3.connect(directory / "payments.db") as database:
        return database.execute("SELECT decision FROM attempts WHERE id = ?", (ID,)).fetchone()[0]


def findings_after_silence(directory: Path, in_doubt: str) -> set[str]:
    """Let the coordinator decide `paid`, tell orders and inventory, and die; it starts again and
    tells everybody. Return what the judge finds.

    The test is the coordinator, so that its death comes at that place every time.
    """
    ports = dict(zip((*THINGS, "nobody"), choose_ports("127.0.0.1", 0, 4), strict=True))
    environment = {"SHOP_IN_DOUBT": in_doubt, "SHOP_COORDINATOR": at(ports["nobody"])}
    environment |= {
        f"SHOP_{name.upper()}_DATABASE": f"sqlite:///{directory}/{name}.db" for name in THINGS
    }
    services = [
        ServiceProcess(
            name,
            f"examples.shop.two_phase.{name}:app",
            ports[name],
            1,
            directory / f"{name}.log",
            environment,
        )
        for name in THINGS
    ]

    def coordinate() -> None:
        item, account = LOAD.item(1), LOAD.account(1) | {"deposited": 1_000_000}
        ask(f"{at(ports['inventory'])}/items", Item(**item | {"delivered": 100}))
        ask(f"{at(ports['payments'])}/accounts", Account(**account))
        for name in THINGS:
            prepared = Prepare(id=ID, order=Order(**LOAD.order(1)))
            assert ask(f"{at(ports[name])}/prepare", prepared) == {"vote": "yes"}
        for name in ("orders", "inventory"):
            ask(f"{at(ports[name])}/decide", Decide(id=ID, decision="paid"))
        log = directory / "payments.log"
        wait_until(lambda: "in_doubt id=1" in log.read_text(), "payments has not asked")
        if in_doubt == "abort":
            wait_until(lambda: decision_of(directory) == "aborted", "payments waits")
        else:
            assert decision_of(directory) is None
        for name in THINGS:
            ask(f"{at(ports[name])}/decide", Decide(id=ID, decision="paid"))

    async def run() -> None:
        async with running_services(services):
            await asyncio.to_thread(coordinate)

    asyncio.run(run())
    findings = Findings()
    rows = read_rows({name: f"sqlite:///{directory}/{name}.db" for name in THINGS})
    judge_databases(rows, LOAD, b"\0\1", findings)
    return set(findings.wrong)


def at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.mark.processes
def test_a_participant_in_doubt_waits_for_its_coordinator(tmp_path: Path) -> None:
    assert findings_after_silence(tmp_path, "ask") == set()


@pytest.mark.processes
def test_the_judge_finds_a_participant_that_takes_silence_for_an_abort(tmp_path: Path) -> None:
    assert findings_after_silence(tmp_path, "abort") == {
        "paid in one service and not in another",
        "money made or lost",
    }


def run(directory: Path, *, orders: int, kills: int, has_bug: bool) -> Result:
    plan = Plan(Load(1, orders), directory, kills=kills)
    return asyncio.run(run_in_two_phases(plan, print, has_bug=has_bug))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("orders", "kills"), [(30, 2), pytest.param(300, 12, marks=pytest.mark.long)]
)
def test_the_version_with_a_coordinator_is_right_while_its_processes_are_killed(
    tmp_path: Path, orders: int, kills: int
) -> None:
    result = run(tmp_path, orders=orders, kills=kills, has_bug=False)
    assert result.wrong == []
    assert result.orders == sum(result.states.values()) == orders
    assert sum(result.kills.values()) == kills


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(7_200)
def test_the_judge_finds_the_planted_bug_in_a_run_with_kills(tmp_path: Path) -> None:
    result = run(tmp_path, orders=3_000, kills=60, has_bug=True)
    assert any(line.startswith("paid in one service") for line in result.wrong)
