"""`python -m tests.network.writer CLUSTER NAME`: a client that appends and follows.

Appends to every partition, one transaction after another, until standard input ends, and writes on
standard output what it was told and handed, a JSON list a line:

    ["sent", partition, data, seconds]       seconds of the machine's monotonic clock
    ["written", partition, data, ID, seconds]
    ["refused", partition, data, error, whether it may be written all the same]
    ["applied", partition, ID, data]         all transactions of a partition, in order
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Sequence

import waltz

PAUSE_SECONDS = 0.03
KEYS = 5
"""Write locks that the clients contend for, per partition."""


def say(*what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")


class Following(waltz.WaltzClientCallbacks):
    """Writes down what it is handed."""

    prefetch = True

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}

    def get_client_high_water_mark(self, partition_id: int) -> int:
        return self._marks.get(partition_id, waltz.NOTHING)

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        for each in transactions:
            partition, number = int(each.partition_id), int(each.transaction_id)
            say("applied", partition, number, each.data.decode())
            self._marks[partition] = number


async def write(
    client: waltz.AsyncWaltzClient, name: str, partition: int, ending: asyncio.Event
) -> None:
    for number in itertools.count():
        if ending.is_set():
            return
        data = f"{name}.{partition}.{number}"
        say("sent", partition, data, time.monotonic())
        lock = waltz.PartitionLocalLock("key", number % KEYS)
        try:
            written = await client.append(partition, data.encode(), write_locks=[lock])
        except waltz.WaltzError as error:
            say("refused", partition, data, repr(error), error.may_be_written)
        else:
            say("written", partition, data, int(written), time.monotonic())
        await asyncio.sleep(PAUSE_SECONDS)


async def main(cluster: str, name: str) -> None:
    ending = asyncio.Event()
    async with waltz.open_async_client(cluster, Following()) as client:
        print('["ready"]')
        writing = [
            asyncio.create_task(write(client, name, partition, ending))
            for partition in range(client.partition_count)
        ]
        flushing = asyncio.create_task(flush_often())
        await asyncio.to_thread(sys.stdin.read)
        ending.set()
        await asyncio.gather(*writing)
        flushing.cancel()
    sys.stdout.flush()


async def flush_often() -> None:
    while True:
        sys.stdout.flush()
        await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    asyncio.run(main(*sys.argv[1:]))
