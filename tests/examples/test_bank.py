"""The bank: money is neither made nor lost, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest
import sqlalchemy as sql

from examples.bank import ACCOUNT, JSON, Bank, Order, find, talk
from examples.orders import draw
from tests.clusters import ROOT, RunningCluster, running_cluster, wait_until
from tests.databases import running_database
from tests.shares import one_in
from waltz import AsyncWaltzClient, WaltzClientCallbacks, open_reader
from waltz.testing import FAULT_PLANS, InMemoryCluster, SimulatedApplication, simulate
from waltz.testing.application_simulation import Log

SCRIPT = ["deposit 1 100", "withdraw 1 30", "balance 1", "withdraw 1 71", "transfer 1 2 50",
          "balance 2", "transfer 1 2 21", "transfer 1 102 5", "deactivate 1", "deposit 1 5",
          "withdraw 1 5", "balance 1", "deposit 2 0", "deposit 2", "quit", "balance 2"]  # fmt: skip
ANSWERS = ["done", "done", "70", "the balance is too low", "done", "50", "the balance is too low",
           "the accounts are of two branches", "done", "an account is not active",
           "an account is not active", "20", "not done: an amount is positive",
           "not done: deposit, withdraw, transfer, balance, deactivate or quit"]  # fmt: skip


def balances(engine: sql.Engine) -> dict[int, int]:
    with engine.connect() as connection:
        return {row.number: row.balance for row in connection.execute(ACCOUNT.select())}


def logged(data: list[bytes]) -> Counter[int]:
    """What the balances are by the log alone; at no time is one below zero."""
    total: Counter[int] = Counter()
    for each in data:
        for number, amount in JSON.deserialize(each)["changes"]:
            total[number] += amount
            assert total[number] >= 0, f"account {number} was overdrawn"
    return total


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sql.Engine]:
    engine = sql.create_engine(f"sqlite:///{tmp_path}/bank.db", connect_args={"timeout": 60})
    yield engine
    engine.dispose()


def test_a_day_at_the_bank(engine: sql.Engine) -> None:
    """DM-01, DM-03: and the state is the same when it is made anew from the log."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(Bank(engine))
        assert [*talk(client, engine, SCRIPT)] == ANSWERS
        before = balances(engine)
        client.close()
        again = cluster.open_client(Bank(engine, rebuild=True))
        wait_until(lambda: balances(engine) == before, "the balances are not those before")
        assert [*talk(again, engine, ["balance 1", "withdraw 1 1"])] == [
            "20", "an account is not active",
        ]  # fmt: skip


def test_of_two_who_withdraw_everything_one_is_refused(tmp_path: Path) -> None:
    """DM-02: each in a database of its own; both have decided before they see the other."""
    with InMemoryCluster(for_tests=True) as cluster:
        engines = [sql.create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in "ab"]
        clients = [cluster.open_client(Bank(engine)) for engine in engines]
        assert [*talk(clients[0], engines[0], ["deposit 1 100"])] == ["done"]
        wait_until(lambda: find(engines[1], 1) == (100, True), "the other is not fed")
        cluster.faults.suspend_feed()
        orders = [Order(engine, 1, None, 100) for engine in engines]
        for client, order in zip(clients, orders, strict=True):
            client.submit(order)
        cluster.faults.resume_feed()
        for client in clients:
            client.flush()
        assert sorted(order.answer for order in orders) == ["done", "the balance is too low"]


def test_a_deactivation_beats_a_withdrawal_that_was_decided_before(tmp_path: Path) -> None:
    """DM-02."""
    with InMemoryCluster(for_tests=True) as cluster:
        engines = [sql.create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in "ab"]
        clients = [cluster.open_client(Bank(engine)) for engine in engines]
        assert [*talk(clients[0], engines[0], ["deposit 1 100"])] == ["done"]
        wait_until(lambda: find(engines[1], 1) == (100, True), "the other is not fed")
        cluster.faults.suspend_feed()
        deactivation, withdrawal = Order(engines[0], 1, None, None), Order(engines[1], 1, None, 50)
        clients[0].submit(deactivation)
        wait_until(lambda: clients[0].get_high_water_mark(0) == 1, "it is not in the log")
        clients[1].submit(withdrawal)
        cluster.faults.resume_feed()
        for client in clients:
            client.flush()
        assert (deactivation.answer, withdrawal.answer) == ("done", "an account is not active")


class SimulatedBank(SimulatedApplication):
    """Every client has a process and a database of its own."""

    def __init__(self, name: str) -> None:
        self.engine = sql.create_engine("sqlite://", poolclass=sql.StaticPool)
        Bank(self.engine)

    def callbacks(self) -> WaltzClientCallbacks:
        return Bank(self.engine)

    async def work(self, client: AsyncWaltzClient, random: Random) -> None:
        for command in draw(random, 40):
            verb, one, *rest = command.split()
            numbers = [int(each) for each in rest]
            source = None if verb == "deposit" else int(one)
            target = int(one) if verb == "deposit" else numbers[0] if verb == "transfer" else None
            await client.submit(Order(self.engine, source, target, numbers[-1]))
            if random.random() < 0.2:
                await asyncio.sleep(random.uniform(0.0, 5.0))

    def check(self, log: Log) -> None:
        data = [fed.data for transactions in log.values() for fed in transactions]
        assert balances(self.engine) == logged(data)


@pytest.mark.parametrize("faults", one_in(12, FAULT_PLANS))
def test_the_bank_is_right_under_every_fault(faults: str) -> None:
    """DM-02, PM-50."""
    simulate(SimulatedBank, seed=0, faults=faults, clients=3, max_concurrent_transactions=20)


class Branch:
    """A process of the bank that carries out orders until all are done, whoever kills it."""

    def __init__(self, cluster: RunningCluster, url: str, seed: int) -> None:
        self.orders = [*draw(Random(seed), 40)]
        self.answers: list[str] = []
        self.deaths = 0
        self._command = [
            *(sys.executable, str(ROOT / "examples" / "bank.py")),
            *("--cluster", cluster.coordinator, "--database", url),
        ]
        self.process = self._start()
        self.thread = Thread(target=self._work)
        self.thread.start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _work(self) -> None:
        for order in self.orders:
            self.answers.append(self._say(order))
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _say(self, order: str) -> str:
        """One order is given once: with a process that dies it may be done or not."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{order}\n")
            answer = self.process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.wait()
            self.deaths += 1
            self.process = self._start()
        return answer or "unknown"


@pytest.mark.processes
@pytest.mark.parametrize("kind", one_in(2, ["sqlite", "postgresql"]))
def test_money_is_neither_made_nor_lost(tmp_path: Path, kind: str) -> None:
    """DM-01, DM-02, PM-30, PM-50: three processes on one database, which are killed one by one
    while they work, and a storage node with them."""
    with running_cluster(tmp_path / "cluster", "--partitions", "2") as cluster:
        if kind == "sqlite":
            _run_bank(cluster, sql.make_url(f"sqlite:///{tmp_path}/bank.db?timeout=60"))
            return
        with running_database(kind) as server:
            _run_bank(cluster, server.url(server.first))


def _run_bank(cluster: RunningCluster, url: sql.URL) -> None:
    engine = sql.create_engine(url)
    Bank(engine)
    branches = [Branch(cluster, url.render_as_string(hide_password=False), n) for n in range(3)]
    for number, branch in enumerate(branches):
        wait_until(lambda branch=branch: len(branch.answers) >= 8, "nothing is done")
        branch.process.kill()
        if number == 1:
            cluster.kill("storage-1")
    for branch in branches:
        branch.thread.join()
    answers = Counter(answer for branch in branches for answer in branch.answers)
    assert sum(branch.deaths for branch in branches) >= 1
    with open_reader(cluster.coordinator) as reader:
        marks = [reader.high_water_mark(number) for number in range(reader.partition_count)]
        data = [
            each
            for number, mark in enumerate(marks)
            for columns in reader.read(number, 0, mark + 1)
            for each in columns.data
        ]
    # What nobody was told about is in the log or not; what is in the log is done, once.
    assert answers["done"] <= len(data) <= answers["done"] + answers["unknown"]
    callbacks = Bank(engine)
    for number, mark in enumerate(marks):
        wait_until(
            lambda number=number, mark=mark: callbacks.get_client_high_water_mark(number) == mark,
            f"partition {number} is not applied: {answers}",
        )
    assert balances(engine) == dict(logged(data))
    engine.dispose()
