"""Seats of a theatre, kept in memory: an asyncio service sells them, a program of threads counts.

    python examples/seats.py sell 12 13 14
    python examples/seats.py count

Every process builds its state from the log; no database is needed. Both clients of Waltz are used,
and every name has its type: mypy --strict and pyright find nothing to say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import TypedDict

import waltz


class Sale(TypedDict):
    """What is in the log."""

    seat: int
    buyer: str


JSON = waltz.JsonSerializer()


class Seats(waltz.WaltzClientCallbacks):
    """Who has which seat; applied from the log's beginning on in every process."""

    def __init__(self) -> None:
        self.buyers: dict[int, str] = {}

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> int:
        return waltz.NOTHING

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        sale: Sale = transaction.get_transaction_data(JSON)
        self.buyers[sale["seat"]] = sale["buyer"]


class Sell(waltz.TransactionContext):
    """Sells a seat, unless somebody has it: the lock lets one of two who try at once win."""

    def __init__(self, seats: Seats, seat: int, buyer: str) -> None:
        self.seats, self.seat, self.buyer = seats, seat, buyer
        self.answer = "unknown"
        self.refused_for: list[waltz.PartitionLocalLock | None] = []

    def partition_id(self, partition_count: int) -> int:
        return self.seat % partition_count

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        if self.seat in self.seats.buyers:
            self.answer = f"taken by {self.seats.buyers[self.seat]}"
            return False
        builder.set_header(self.seat)
        builder.set_write_locks([waltz.PartitionLocalLock("seat", self.seat)])
        sale: Sale = {"seat": self.seat, "buyer": self.buyer}
        builder.set_transaction_data(sale, JSON)
        return True

    def on_application(self) -> None:
        self.answer = "sold"

    def on_lock_failure(self, transaction_id: waltz.TransactionId) -> None:
        self.refused_for.append(self.refused_lock)

    def on_exception(self, error: Exception) -> None:
        may_be_sold = isinstance(error, waltz.WaltzError) and error.may_be_written
        self.answer = "unknown" if may_be_sold else f"not sold: {error}"


async def sell(
    client: waltz.AsyncWaltzClient, seats: Seats, wanted: Sequence[int], buyer: str
) -> dict[int, str]:
    """Sell all `wanted` at once and return what became of each."""
    orders = [Sell(seats, seat, buyer) for seat in wanted]
    await asyncio.gather(*[client.submit(order) for order in orders])
    await client.flush(timeout_seconds=60)
    for order in orders:
        if order.answer == "unknown" and order.request_id is not None:
            at = await client.outcome(order.request_id, order.executed_at)
            order.answer = "not sold" if at is None else "sold"
    return {order.seat: order.answer for order in orders}


def count(client: waltz.WaltzClient, seats: Seats) -> dict[str, int]:
    """Return how many seats each buyer has, by all that is in the log by now."""
    client.wait_until_applied()
    buyers = list(seats.buyers.values())
    return {buyer: buyers.count(buyer) for buyer in sorted(set(buyers))}


def listen(event: waltz.LifecycleEvent) -> None:
    match event:
        case waltz.ServerDisconnected(address):
            print(f"lost {address}")
        case waltz.ClusterChanged(expected, found):
            print(f"not our cluster: {found}, expected {expected}")
        case _:
            pass


async def sell_as_told(cluster: str, wanted: Sequence[int], buyer: str) -> None:
    seats = Seats()
    async with waltz.open_async_client(cluster, seats, listener=listen) as client:
        for seat, answer in (await sell(client, seats, wanted, buyer)).items():
            print(seat, answer)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Sells seats of a theatre, and counts them.")
    parser.add_argument("--cluster", default="127.0.0.1:7100")
    parser.add_argument("--buyer", default=os.environ.get("USER", "somebody"))
    parser.add_argument("verb", choices=["sell", "count"])
    parser.add_argument("seats", nargs="*", type=int)
    options = parser.parse_args(arguments)
    if options.verb == "sell":
        asyncio.run(sell_as_told(options.cluster, options.seats, options.buyer))
        return
    seats = Seats()
    with waltz.open_client(options.cluster, seats) as client:
        for buyer, number in count(client, seats).items():
            print(number, buyer)


if __name__ == "__main__":
    main()
