"""One run of the two-phase version: a coordinator, three participants, customers, a killer, and the
verdict of the same judge, which has no log to read here."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import sqlalchemy as sql

from examples.shop.trial.customers import Customers
from examples.shop.trial.judge import THINGS, Findings, judge_databases, read_rows
from examples.shop.trial.services import ServiceProcess, running_services
from examples.shop.trial.waltz_trial import (
    SETTLE_SECONDS_MAX,
    NotSettledError,
    Plan,
    Result,
    Say,
    killer_of,
    order_and_kill,
    result_of,
)
from waltz.cli.trial_directory import choose_ports

COORDINATOR: Final = "coordinator"


async def run_in_two_phases(plan: Plan, say: Say, *, has_bug: bool) -> Result:
    """Run the whole; `has_bug`: participants take the silence of the coordinator for an abort.

    Raises NotServedError, NotSettledError, ShopClosedError.
    """
    names = (COORDINATOR, *THINGS)
    ports = dict(zip(names, choose_ports("127.0.0.1", 0, len(names)), strict=True))
    environment = {"SHOP_IN_DOUBT": "abort" if has_bug else "ask"}
    for name, port in ports.items():
        environment[f"SHOP_{name.upper()}"] = f"http://127.0.0.1:{port}"
        environment[f"SHOP_{name.upper()}_DATABASE"] = plan.database(name)
    services = [
        ServiceProcess(
            name,
            f"examples.shop.two_phase.{name}:app",
            port,
            1,  # one process decides, and each participant's locks are its database's
            plan.directory / f"{name}.log",
            environment,
        )
        for name, port in ports.items()
    ]
    customers = Customers(
        plan.load, ports, plan.customers, seconds_max=plan.seconds_max, desk=COORDINATOR
    )
    killer = killer_of(plan, services, dict)
    async with running_services(services):
        say("a coordinator and three participants are up")
        seconds = await order_and_kill(customers, killer, plan, say)
        say("all orders are confirmed; waiting until every decision is known everywhere")
        settling = await _settled(plan)
        transactions = _count(plan, COORDINATOR, "SELECT count(*) FROM transactions")
    findings = Findings()
    rows = read_rows({name: plan.database(name) for name in THINGS})
    judge_databases(rows, plan.load, customers.confirmed, findings)
    return result_of(
        customers,
        killer,
        findings,
        rows["orders"].orders.values(),
        seconds=seconds,
        settling=settling,
        transactions=transactions,
    )


async def _settled(plan: Plan) -> float:
    """Return, once nothing is in doubt, how long that took. Raises NotSettledError."""
    begun = time.monotonic()
    in_doubt = "SELECT count(*) FROM attempts WHERE decision IS NULL"
    while True:
        waiting = {name: _count(plan, name, in_doubt) for name in THINGS}
        untold = "SELECT count(*) FROM transactions WHERE told = 0"
        waiting[COORDINATOR] = _count(plan, COORDINATOR, untold)
        if not any(waiting.values()):
            return time.monotonic() - begun
        if time.monotonic() - begun > SETTLE_SECONDS_MAX:
            raise NotSettledError(f"not settled in {SETTLE_SECONDS_MAX:.0f} s: {waiting}")
        await asyncio.sleep(0.2)


def _count(plan: Plan, name: str, query: str) -> int:
    engine = sql.create_engine(plan.database(name), poolclass=sql.NullPool)
    with engine.connect() as connection:
        found: int = connection.execute(sql.text(query)).scalar_one()
        return found
