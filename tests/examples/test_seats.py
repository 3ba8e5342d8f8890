"""Seats are sold once, whoever asks and however it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from examples.seats import Seats, Sell, count, listen, main, sell
from tests.clusters import running_cluster
from waltz import (
    Address,
    ClientClosedError,
    ClusterChanged,
    LocalProtocolError,
    PartitionLocalLock,
    PartitionMounted,
    ServerDisconnected,
    TransactionBuilder,
)
from waltz.testing import Faults, InMemoryCluster
from waltz.types import PartitionId


def test_of_many_who_want_a_seat_one_gets_it(waltz_cluster: InMemoryCluster) -> None:
    """PM-20: five services, each of which wants all seats."""

    async def service(number: int) -> dict[int, str]:
        seats = Seats()
        async with waltz_cluster.open_async_client(seats) as client:
            return await sell(client, seats, range(6), f"buyer {number}")

    async def work() -> list[dict[int, str]]:
        return await asyncio.gather(*[service(number) for number in range(5)])

    answers = asyncio.run(work())
    for seat in range(6):
        winners = [n for n, told in enumerate(answers) if told[seat] == "sold"]
        assert len(winners) == 1
        losers = {told[seat] for told in answers} - {"sold"}
        assert losers == {f"taken by buyer {winners[0]}"}
    seats = Seats()
    with waltz_cluster.open_client(seats) as client:
        counted = count(client, seats)
    assert sum(counted.values()) == 6
    assert counted == {
        f"buyer {number}": sold
        for number, told in enumerate(answers)
        if (sold := list(told.values()).count("sold"))
    }


class Overtaken(Sell):
    """Lets `rival` sell the same seat between its first look and its append."""

    def __init__(self, seats: Seats, rival: Callable[[], None]) -> None:
        super().__init__(seats, 1, "late")
        self.rivals = [rival]

    def execute(self, builder: TransactionBuilder) -> bool:
        done = super().execute(builder)
        while self.rivals:
            self.rivals.pop()()
        return done


def test_who_loses_is_told_the_lock(waltz_cluster: InMemoryCluster) -> None:
    """PM-24."""
    seats, others = Seats(), Seats()
    faults = Faults()
    other = waltz_cluster.open_client(others)
    client = waltz_cluster.open_client(seats, faults=faults)

    def rival() -> None:
        faults.suspend_feed()
        other.submit(Sell(others, 1, "first"))
        other.flush()

    order = Overtaken(seats, rival)
    client.submit(order)
    faults.resume_feed()
    client.flush()
    assert order.answer == "taken by first"
    assert order.refused_for == [PartitionLocalLock("seat", 1)]


def test_what_is_not_known_is_not_called_sold() -> None:
    order = Sell(Seats(), 1, "somebody")
    order.on_exception(LocalProtocolError("no"))
    assert order.answer == "not sold: no"
    order.on_exception(ClientClosedError("closed"))
    assert order.answer == "unknown"


def test_what_happens_to_connections_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    listen(ServerDisconnected(Address("a", 1)))
    listen(ClusterChanged(UUID(int=1), UUID(int=2)))
    listen(PartitionMounted(PartitionId(0)))
    told = capsys.readouterr().out
    assert told.startswith("lost a:1\nnot our cluster: ")
    assert told.count("\n") == 2


@pytest.mark.processes
def test_its_commands_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PM-01: the second process knows what the first has sold."""
    with running_cluster(tmp_path) as cluster:
        where = ["--cluster", cluster.coordinator, "--buyer"]
        main([*where, "anna", "sell", "1", "2"])
        main([*where, "bert", "sell", "2", "3"])
        main([*where, "bert", "count"])
    said = capsys.readouterr().out.splitlines()
    assert said == ["1 sold", "2 sold", "2 taken by anna", "3 sold", "2 anna", "1 bert"]
