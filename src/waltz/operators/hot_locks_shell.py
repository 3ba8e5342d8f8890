"""Asks servers for the locks that refuse most appends, of one partition or of many.

Owns the order over partitions, and which partitions nobody could be asked for. A server counts what
it remembers of each partition: the newest refusals since it has opened the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from waltz.cluster.cluster_shell import read_membership, read_store_params
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import MembershipRead
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.operators.questions_shell import talk_by_handshake
from waltz.types import Address, PartitionId
from waltz.wire.report_protocol import HotLock, HotLocksReport, HotLocksRequest, RefusalsKept

SERVERS_AT_ONCE_MAX: Final = 16
"""Servers that are asked at once for their hot locks; the others wait for their turn."""


@dataclass(frozen=True, slots=True)
class HottestLock:
    """A lock of a partition, and the refusals of the partition that its server remembers."""

    partition_id: PartitionId
    kept: RefusalsKept
    lock: HotLock


@dataclass(frozen=True, slots=True)
class HottestLocks:
    """The locks with the most refusals over all partitions whose servers have answered, the hottest
    first. `asked` has the refusals of each of these partitions; `unasked` has the other partitions,
    each with the reason."""

    locks: tuple[HottestLock, ...]
    asked: Mapping[PartitionId, RefusalsKept]
    unasked: Mapping[PartitionId, str]

    @property
    def unknown(self) -> list[tuple[list[PartitionId], str]]:
        """The partitions that could not be asked, those together that have the same reason."""
        found: dict[str, list[PartitionId]] = {}
        for number in sorted(self.unasked):
            found.setdefault(self.unasked[number], []).append(number)
        return [(numbers, reason) for reason, numbers in found.items()]


async def ask_hot_locks(
    host: Host, address: Address, partition_id: PartitionId, count_max: int
) -> HotLocksReport:
    """Return the locks of a partition with the most refusals that its server remembers, at most
    `count_max`.

    Raises UnavailableError: the server does not answer, does not have the partition, or has a
    release that cannot say.
    """
    answer = (await _ask_server(host, address, [partition_id], count_max, HANDSHAKE_SECONDS_MAX))[0]
    if isinstance(answer, UnavailableError):
        raise answer
    return answer


async def ask_hottest_locks(
    host: Host,
    servers: Mapping[PartitionId, Address | None],
    count_max: int,
    *,
    seconds: float = HANDSHAKE_SECONDS_MAX,
) -> HottestLocks:
    """Ask the servers of these partitions, each for `seconds` at most; None: a partition has no
    server now. At most `count_max` locks are returned."""
    owned: dict[Address, list[PartitionId]] = {}
    answers: dict[PartitionId, HotLocksReport | UnavailableError] = {}
    for number, address in servers.items():
        if address is None:
            answers[number] = UnavailableError("no server has it now")
        else:
            owned.setdefault(address, []).append(number)
    turns = asyncio.Semaphore(SERVERS_AT_ONCE_MAX)

    async def ask(address: Address) -> None:
        async with turns:
            told = await _ask_server(host, address, owned[address], count_max, seconds)
            answers.update(zip(owned[address], told, strict=True))

    await asyncio.gather(*map(ask, owned))
    return hottest_of(answers, count_max)


def hottest_of(
    answers: Mapping[PartitionId, HotLocksReport | UnavailableError], count_max: int
) -> HottestLocks:
    """Return at most `count_max` locks of these answers, each of which has the hottest `count_max`
    of its partition."""
    found: list[HottestLock] = []
    asked: dict[PartitionId, RefusalsKept] = {}
    unasked: dict[PartitionId, str] = {}
    for number, answer in answers.items():
        if isinstance(answer, UnavailableError):
            unasked[number] = str(answer)
        else:
            kept = answer.kept
            assert kept is not None, "the partition is the server's"
            asked[number] = kept
            found += (HottestLock(number, kept, each) for each in answer.locks)
    return HottestLocks(tuple(nsmallest(count_max, found, key=_hottest_first)), asked, unasked)


async def ask_all_hot_locks(host: Host, root: str, count_max: int) -> HottestLocks:
    """Ask the servers of all partitions of a cluster, as the coordinator names them. Raises
    NoNodeError: there is no cluster; CoordinatorLostError."""
    params = await read_store_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    return await ask_hottest_locks(host, _servers_of(membership, params.partition_count), count_max)


def _servers_of(
    membership: MembershipRead, partition_count: int
) -> Mapping[PartitionId, Address | None]:
    """Return the server of each partition; None: it has none now."""
    found: dict[PartitionId, Address | None] = dict.fromkeys(
        map(PartitionId, range(partition_count))
    )
    for server_id, owned in membership.assignment.servers.items():
        if server_id in membership.descriptors:
            address = membership.descriptors[server_id].address
            found |= {number: address for number in owned if number in found}
    return found


def _hottest_first(each: HottestLock) -> tuple[int, int, int]:
    """Return the place of a lock; of locks with as many refusals the one that refused last comes
    first."""
    return -each.lock.refusals, each.lock.age_milliseconds, each.partition_id


async def _ask_server(
    host: Host,
    address: Address,
    partition_ids: Sequence[PartitionId],
    count_max: int,
    seconds: float,
) -> list[HotLocksReport | UnavailableError]:
    """Return the answer for each partition, or why there is none.

    Over one connection, one partition after the other: the server never works on more than one
    partition at a time for this question, between two of which it does its other work.
    """
    answers: list[HotLocksReport | UnavailableError] = []
    try:
        async with talk_by_handshake(host, address, seconds) as talk:
            for number in partition_ids:
                answer = await talk.ask(HotLocksRequest(0, number, count_max), HotLocksReport)
                if answer.kept is None:
                    trouble = f"server {address} does not have the partition now"
                    answers.append(UnavailableError(trouble))
                else:
                    answers.append(answer)
    except UnavailableError as error:
        answers += [error] * (len(partition_ids) - len(answers))
    return answers
