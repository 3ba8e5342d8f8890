"""Servers of ours and of the original's role after each other, where a mistake of one would harm
the other: a server that hangs while its partitions move, a tail that only one replica has, locks.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

import waltz
from examples.seats import Seats, sell
from tests.rolling.accounts import acknowledged, last_held
from tests.rolling.golden_link import StorageConnection, joined_records, split_records
from tests.rolling.golden_tree import Tree, read_metadata
from tests.rolling.road import LOOK_SECONDS, MORE, STEP_SECONDS_MAX, Manner, Road, driven
from tests.rolling.sessions import opened_sessions, successions, unsound
from tests.rolling.test_original_roles import ORIGINAL, road_of_the_original
from tests.storage.independent_reader import parse_directory, read_files

pytestmark = [pytest.mark.processes, pytest.mark.long]

OURS: Final = Manner("ours", reports=False)
"""Storage nodes of the original's role cannot be asked whether they take part."""

TAIL: Final = 3
"""Records that one replica has, and that no other one ever had."""
MISSING_MAX: Final = 1000
"""More than a replica is ever behind when its servers have ended."""
BODY: Final = b"of a server that died"
SEATS: Final = 20
"""Seats that are sold at once."""
SALE: Final = b"{"
"""The beginning of a sale's data."""


class RoughRoad(Road):
    """A road on which nodes are away for longer than a step."""

    async def end(self, *names: str) -> None:
        await asyncio.gather(*map(self._stop, names))

    async def begin(self, manner: Manner, *names: str) -> None:
        await asyncio.gather(*(self._start(name, manner) for name in names))

    def places(self, first: str) -> list[str]:
        """Return the data ports of the storage nodes, that of one of them first."""
        names = sorted(self.storages, key=lambda name: name != first)
        return [str(self._entries[name].connect) for name in names]

    async def goes_on(self, step: str) -> None:
        """Return once each partition has taken appends, which some replica may lack."""
        begun, before = time.monotonic(), acknowledged(self.journals)
        while any(now < before[each] + MORE for each, now in acknowledged(self.journals).items()):
            assert time.monotonic() - begun < STEP_SECONDS_MAX, f"{step}: not over"
            await asyncio.sleep(LOOK_SECONDS)
        self._say(f"{step}: after {time.monotonic() - begun:.1f} s")

    async def hang(self, name: str) -> None:
        """Have a server hang until the other one has all partitions, and return once it has one
        of them again, and that takes appends."""
        process, manner = self.cluster.nodes[name], self.manners[name].name
        process.stop()
        await self.step_is_over(f"{name}, played by {manner}, hangs")
        process.resume()
        begun = time.monotonic()
        while manner not in {each.partition: each.by for each in opened_sessions(self)}.values():
            assert time.monotonic() - begun < STEP_SECONDS_MAX, f"{name} serves nothing any more"
            await asyncio.sleep(LOOK_SECONDS)
        await self.step_is_over(f"{name} is there again")


def run(
    directory: Path,
    steps: Callable[[RoughRoad], Coroutine[Any, Any, None]],
    wanted: tuple[str, str],
    *,
    is_alone: bool = True,
) -> None:
    """Play the steps and judge all; `wanted`: by whom a partition is recovered after whom;
    `is_alone`: nobody but the road's writer writes."""

    async def main() -> None:
        road = road_of_the_original(directory, ORIGINAL, speaks_tls=False, kind=RoughRoad)
        async with driven(road):
            assert isinstance(road, RoughRoad)
            await steps(road)
            violations = await road.judged()
            if not is_alone:
                violations = [each for each in violations if "nobody wrote" not in each]
            assert violations == []
            sessions = opened_sessions(road)
            assert list(unsound(sessions)) == []
            assert wanted in successions(sessions)

    asyncio.run(main())


# A server that hangs


@pytest.mark.parametrize("hanging", [OURS, ORIGINAL], ids=lambda manner: manner.name)
def test_a_server_that_hangs_is_fenced_and_takes_part_again(
    tmp_path: Path, hanging: Manner
) -> None:
    """Its session in ZooKeeper ends meanwhile; the other server is of the other manner."""
    other = ORIGINAL if hanging is OURS else OURS

    async def steps(road: RoughRoad) -> None:
        await road.replace("server-1", OURS)
        (name,) = [each for each in road.servers if road.manners[each] is hanging]
        await road.hang(name)
        (rest,) = [each for each in road.servers if each != name]
        await road.hang(rest)

    run(tmp_path, steps, (hanging.name, other.name))


# A tail that only one replica has


def leave_a_tail(road: RoughRoad, storage: str) -> None:
    """Do what the last server would have done with its last breath: append to one replica."""
    tree = Tree(str(road.cluster.coordinator))
    tree.start()
    own, *others = (StorageConnection(place, tree.opening, None) for place in road.places(storage))
    for partition in range(road.partitions):
        path = f"{tree.root}/store/partition/{partition}"
        session = read_metadata(tree.client.get(path)[0]).session
        first = last_held(road.files(storage), partition) + 1
        # In one session no two replicas are sent different records under the same ID.
        asked = struct.pack(">qi", first, MISSING_MAX)
        answers = (each.call("RecListReq", session, partition, asked) for each in others)
        missing = max(map(split_records, answers), key=len)
        assert len(missing) < MISSING_MAX
        body = struct.pack(">i", len(BODY)) + BODY + struct.pack(">I", crc32(BODY))
        tail = [
            struct.pack(">qiiiii", number, 99, 0, partition, number, 0) + body
            for number in range(first + len(missing), first + len(missing) + TAIL)
        ]
        own.call("Append", session, partition, joined_records(missing + tail))
    for each in (own, *others):
        each.end()
    tree.close()


@pytest.mark.parametrize("first", [OURS, ORIGINAL], ids=lambda manner: manner.name)
def test_a_tail_that_one_replica_has_is_cut_by_the_server_after_the_next(
    tmp_path: Path, first: Manner
) -> None:
    """The replica is away while the `first` server recovers without it, and comes back to a server
    of the other manner, which has only the metadata to know that the tail is not to be trusted."""
    then = ORIGINAL if first is OURS else OURS

    async def steps(road: RoughRoad) -> None:
        servers, storage = road.servers, "storage-1"
        await road.end(*servers)
        await asyncio.to_thread(leave_a_tail, road, storage)
        await road.end(storage)
        await road.begin(first, *servers)
        await road.goes_on(f"{storage} is away, the servers are {first.name}")
        await road.end(*servers)
        await road.begin(then, *servers)
        await road.goes_on(f"the servers are {then.name}")
        await road.begin(ORIGINAL, storage)
        await road.step_is_over(f"{storage} is there again")

    run(tmp_path, steps, (first.name, then.name))


# Locks


class SeatsAmongOthers(Seats):
    """Passes over what the road's writer writes."""

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        if bytes(transaction.data).startswith(SALE):
            super().apply_transaction(transaction)


async def sales(road: RoughRoad, buyer: str, end: asyncio.Event) -> dict[int, str]:
    """Have a client of ours sell seat after seat until the end; return the answers by seat."""
    seats = SeatsAmongOthers()
    found: dict[int, str] = {}
    async with waltz.open_async_client(str(road.cluster.coordinator), seats) as client:
        while not end.is_set():
            wanted = range(len(found), len(found) + SEATS)
            found |= await sell(client, seats, wanted, buyer)
    print(f"{buyer} has sold {list(found.values()).count('sold')} of {len(found)} seats")
    return found


def test_locks_of_our_clients_are_decided_by_servers_of_both_manners(tmp_path: Path) -> None:
    """Two clients sell the same seats at once, while one server after the other is replaced."""
    answers: dict[str, dict[int, str]] = {}

    async def steps(road: RoughRoad) -> None:
        end = asyncio.Event()
        buyers = {name: sales(road, name, end) for name in ("anna", "bert")}
        selling = asyncio.gather(*buyers.values())
        for name, manner in (("server-1", OURS), ("server-2", OURS), ("server-1", ORIGINAL)):
            await road.replace(name, manner)
        end.set()
        answers.update(zip(buyers, await selling, strict=True))

    run(tmp_path, steps, ("original", "ours"), is_alone=False)
    (storage,) = tmp_path.glob("cluster/storage-1")
    records = parse_directory(read_files(storage))
    sold: dict[int, list[str]] = {}
    for partition in records.partitions:
        for record in records.records(partition):
            if record.data.startswith(SALE):
                sale = json.loads(record.data)
                sold.setdefault(sale["seat"], []).append(sale["buyer"])
    assert sold.keys() == {seat for told in answers.values() for seat in told}
    assert all(len(buyers) == 1 for buyers in sold.values())
    assert {buyer for (buyer,) in sold.values()} == set(answers)
    for buyer, told in answers.items():
        for seat, answer in told.items():
            assert (answer == "sold") == (sold[seat] == [buyer]), (seat, buyer, answer)
