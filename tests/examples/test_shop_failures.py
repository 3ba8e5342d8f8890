"""A service is away, or its database is lost: the shop on Waltz, and that with a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.error import HTTPError

import pytest

from examples.shop.trial.judge import THINGS
from examples.shop.trial.services import ServiceProcess, running_services
from examples.shop.two_phase.inventory import Item
from examples.shop.two_phase.participant import Order, ask
from examples.shop.two_phase.payments import Account
from tests.clusters import running_cluster, wait_until
from waltz.cli.trial_directory import choose_ports


class Shop:
    """The services of one version, each started as often as it is wanted."""

    def __init__(self, directory: Path, package: str, names: tuple[str, ...]) -> None:
        self.directory, self.package = directory, package
        self.ports = dict(zip(names, choose_ports("127.0.0.1", 0, len(names)), strict=True))
        self.environment: dict[str, str] = {}
        for name, port in self.ports.items():
            self.environment[f"SHOP_{name.upper()}"] = f"http://127.0.0.1:{port}"
            self.environment[f"SHOP_{name.upper()}_DATABASE"] = f"sqlite:///{directory}/{name}.db"

    def service(self, name: str, environment: Mapping[str, str] | None = None) -> ServiceProcess:
        return ServiceProcess(
            name,
            f"{self.package}.{name}:app",
            self.ports[name],
            1,
            self.directory / f"{name}.log",
            {**self.environment, **(environment or {})},
        )

    def at(self, name: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def stock_up(self) -> None:
        ask(self.at("inventory", "/items"), Item(number=1, delivered=10))
        ask(self.at("payments", "/accounts"), Account(number=1, deposited=1_000))

    def order(self, number: int) -> None:
        order = Order(number=number, account=1, item=1, pieces=1, amount=100)
        name = "coordinator" if "coordinator" in self.ports else "orders"
        assert ask(self.at(name, "/orders"), order) == order.model_dump()

    def state(self, number: int) -> str:
        return str(ask(self.at("orders", f"/orders/{number}"))["state"])

    def balance(self) -> int:
        return int(ask(self.at("payments", "/accounts/1"))["balance"])


async def away(call: Callable[[], None]) -> None:
    await asyncio.to_thread(call)


@pytest.mark.processes
def test_orders_are_taken_while_payments_is_away_and_a_lost_database_comes_back_from_the_log(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, "examples.shop", tuple(THINGS))

    async def run(cluster: str) -> None:
        here = {"SHOP_CLUSTER": cluster}
        async with running_services([shop.service(each, here) for each in ("orders", "inventory")]):
            async with running_services([shop.service("payments", here)]):
                await away(shop.stock_up)
                await away(lambda: shop.order(1))
                await away(lambda: wait_until(lambda: shop.state(1) == "paid", "it is not paid"))
            await away(lambda: shop.order(2))
            await away(lambda: wait_until(lambda: shop.state(2) == "reserved", "not reserved"))
            async with running_services([shop.service("payments", here)]):
                await away(lambda: wait_until(lambda: shop.state(2) == "paid", "it is not paid"))
            for path in tmp_path.glob("payments.db*"):
                path.unlink()
            async with running_services([shop.service("payments", here)]):
                await away(lambda: wait_until(lambda: has_balance(shop, 800), "it is not back"))

    with running_cluster(tmp_path / "cluster") as cluster:
        asyncio.run(run(cluster.coordinator))


def has_balance(shop: Shop, balance: int) -> bool:
    """Return whether the account is there with that balance; it is not while the log is read."""
    try:
        return shop.balance() == balance
    except HTTPError as error:
        if error.code != 404:
            raise
        return False


@pytest.mark.long
@pytest.mark.processes
def test_with_a_coordinator_no_order_is_taken_meanwhile_and_a_lost_database_stays_lost(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, "examples.shop.two_phase", ("coordinator", *THINGS))

    def refused() -> None:
        with pytest.raises(HTTPError) as refusal:
            shop.order(2)
        assert refusal.value.code == 503

    async def run() -> None:
        others = [shop.service(each) for each in ("coordinator", "orders", "inventory")]
        async with running_services(others):
            async with running_services([shop.service("payments")]):
                await away(shop.stock_up)
                await away(lambda: shop.order(1))
            await away(refused)
            async with running_services([shop.service("payments")]):
                await away(lambda: wait_until(lambda: is_taken(shop, 2), "it is not taken"))
            for path in tmp_path.glob("payments.db*"):
                path.unlink()
            async with running_services([shop.service("payments")]):
                with pytest.raises(HTTPError) as lost:
                    shop.balance()
                assert lost.value.code == 404

    asyncio.run(run())


def is_taken(shop: Shop, number: int) -> bool:
    """Return whether an order is carried out now; before, the attempt before it has to end."""
    try:
        shop.order(number)
    except HTTPError as error:
        if error.code != 503:
            raise
        return False
    return shop.state(number) == "paid"
