"""One run of the shop on Waltz: a cluster, three services, customers, a killer, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import sqlalchemy as sql

from demo.cluster import Cluster, running_cluster
from examples.shop.trial.customers import Customers
from examples.shop.trial.drawing import Load
from examples.shop.trial.judge import (
    THINGS,
    Findings,
    judge_databases,
    judge_databases_by_log,
    judge_log,
    read_log,
    read_rows,
)
from examples.shop.trial.killer import Killer
from examples.shop.trial.services import ServiceProcess, running_services
from waltz import open_reader
from waltz.cli.trial_directory import choose_ports

PARTITIONS: Final = 4
SETTLE_SECONDS_MAX: Final = 300.0
"""Seconds after the last order in which every order must have come to its end."""

PROGRESS_SECONDS: Final = 5.0
SETTLED: Final = {
    "orders": ("paid", "sold out", "declined"),
    "inventory": ("paid", "sold out", "returned"),
    "payments": ("paid", "declined"),
}
"""The states in which nothing is left to do for an order, by service."""

Say = Callable[[str], None]


class NotSettledError(Exception):
    """Orders wait although every process runs; the text says which service they wait for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The load of a run, its directory, and the number of kills."""

    load: Load
    directory: Path
    customers: int = 16
    workers: int = 2
    servers: int = 2
    kills: int = 0
    seconds_max: float | None = None
    """Seconds after which no further order is begun."""
    databases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Addresses of databases by service; the others are SQLite files of the directory."""

    def database(self, name: str) -> str:
        return self.databases.get(name, f"sqlite:///{self.directory}/{name}.db")


@dataclass
class Result:
    """The figures of a run, and what was wrong."""

    orders: int
    seconds: float
    settling_seconds: float
    states: dict[str, int]
    kills: dict[str, int]
    counts: dict[str, int]
    post_milliseconds: dict[str, float]
    transactions: int
    checked: int
    wrong: list[str]

    @property
    def is_right(self) -> bool:
        return not self.wrong


async def run_on_waltz(plan: Plan, say: Say) -> Result:
    """Run the whole. Raises NotServedError, NotSettledError, ShopClosedError, DemoError."""
    async with running_cluster(
        plan.directory / "cluster",
        plan.directory / "cluster.log",
        partition_count=PARTITIONS,
        server_count=plan.servers,
    ) as cluster:
        environment = {"SHOP_CLUSTER": cluster.coordinator} | {
            f"SHOP_{name.upper()}_DATABASE": plan.database(name) for name in THINGS
        }
        services = start_of_services(plan, "examples.shop.{}:app", environment)
        customers = customers_of(plan, services)
        async with running_services(services):
            say(f"{cluster.summary} and {len(services)} services of {plan.workers} workers are up")
            killer = killer_of(plan, services, lambda: _members(cluster))
            seconds = await order_and_kill(customers, killer, plan, say)
            say("all orders are confirmed; waiting until each has come to its end")
            settling = await _settled(plan, cluster)
        say("the services have stopped in order; judging")
        findings = Findings()
        log = await asyncio.to_thread(
            lambda: judge_log(read_log(cluster.coordinator), plan.load, findings)
        )
    rows = read_rows({name: plan.database(name) for name in THINGS})
    judge_databases(rows, plan.load, customers.confirmed, findings)
    judge_databases_by_log(rows, log, findings)
    return result_of(
        customers, killer, findings, rows["orders"].orders.values(),
        seconds=seconds, settling=settling, transactions=log.transactions,
    )  # fmt: skip


def start_of_services(plan: Plan, app: str, environment: Mapping[str, str]) -> list[ServiceProcess]:
    """Return the three services, not yet started."""
    ports = choose_ports("127.0.0.1", 0, len(THINGS))
    return [
        ServiceProcess(
            name, app.format(name), port, plan.workers, plan.directory / f"{name}.log", environment
        )
        for name, port in zip(THINGS, ports, strict=True)
    ]


def customers_of(plan: Plan, services: list[ServiceProcess]) -> Customers:
    ports = {each.name: each.port for each in services}
    return Customers(plan.load, ports, plan.customers, seconds_max=plan.seconds_max)


def killer_of(
    plan: Plan, services: list[ServiceProcess], cluster: Callable[[], dict[str, int]]
) -> Killer:
    return Killer(
        services,
        cluster,
        orders=plan.load.orders,
        kills=plan.kills,
        random=Random(plan.load.seed),
    )


async def order_and_kill(customers: Customers, killer: Killer, plan: Plan, say: Say) -> float:
    """Let the customers order everything while the killer is about; return the seconds it took."""
    begun = time.monotonic()
    await asyncio.to_thread(customers.open_shop)
    killing = asyncio.create_task(killer.kill(lambda: customers.counts["orders"]))
    telling = asyncio.create_task(_tell(customers, killer, plan, say))
    try:
        await asyncio.to_thread(customers.order_everything)
    finally:
        customers.stopped.set()
        for task in (killing, telling):
            task.cancel()
        ends = await asyncio.gather(killing, telling, return_exceptions=True)
    for error in ends:
        if isinstance(error, Exception):
            raise error
    return time.monotonic() - begun


async def _tell(customers: Customers, killer: Killer, plan: Plan, say: Say) -> None:
    before = 0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        now = customers.counts["orders"]
        say(
            f"{now} of {plan.load.orders} orders, {(now - before) / PROGRESS_SECONDS:.0f} per"
            f" second, {killer.kills.total()} kills, {len(customers.wrong)} wrong answers"
        )
        before = now


def _members(cluster: Cluster) -> dict[str, int]:
    return cluster.processes("server") | cluster.processes("storage")


async def _settled(plan: Plan, cluster: Cluster) -> float:
    """Return, once every order has ended and every database has all of the log, how long that took.
    Raises NotSettledError."""
    begun = time.monotonic()
    engines = {name: sql.create_engine(plan.database(name)) for name in THINGS}
    try:
        while waiting := await asyncio.to_thread(_waiting, engines, cluster.coordinator):
            if time.monotonic() - begun > SETTLE_SECONDS_MAX:
                raise NotSettledError(f"not settled in {SETTLE_SECONDS_MAX:.0f} s: {waiting}")
            await asyncio.sleep(0.2)
    finally:
        for engine in engines.values():
            engine.dispose()
    return time.monotonic() - begun


def _waiting(engines: Mapping[str, sql.Engine], cluster: str) -> dict[str, Any]:
    """Return what each database still has to wait for."""
    waiting: dict[str, Any] = {}
    for name, engine in engines.items():
        ended = ", ".join(f"'{state}'" for state in SETTLED[name])
        query = f"SELECT count(*) FROM orders WHERE state NOT IN ({ended})"
        with engine.connect() as connection:
            if count := connection.execute(sql.text(query)).scalar_one():
                waiting[name] = f"{count} orders"
    if waiting:
        return waiting
    with open_reader(cluster) as reader:
        ends = {number: reader.high_water_mark(number) for number in range(PARTITIONS)}
    for name, engine in engines.items():
        with engine.connect() as connection:
            query = "SELECT partition_id, high_water_mark FROM waltz_high_water_marks"
            marks = dict(map(tuple, connection.execute(sql.text(query))))
        if marks != ends:
            waiting[name] = f"is at {marks} of {ends}"
    return waiting


def result_of(
    customers: Customers,
    killer: Killer,
    findings: Findings,
    orders: Any,
    *,
    seconds: float,
    settling: float,
    transactions: int,
) -> Result:
    """Return the figures of a run that has ended."""
    waits = sorted(customers.post_seconds) or [0.0]  # of none if none was begun in time
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    milliseconds = {name: waits[int(share * len(waits))] * 1000 for name, share in shares.items()}
    return Result(
        orders=customers.counts["orders"],
        seconds=seconds,
        settling_seconds=settling,
        states=dict(sorted(Counter(state for state, _ in orders).items())),
        kills=dict(sorted(killer.kills.items())),
        counts=dict(sorted(customers.counts.items())),
        post_milliseconds=milliseconds | {"max": waits[-1] * 1000},
        transactions=transactions,
        checked=findings.checked + customers.counts["reads with a token"],
        wrong=[*customers.wrong, *findings.lines()],
    )
