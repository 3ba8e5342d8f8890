"""The hottest locks of all partitions, against a server of simulated machines, and by value."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.test_server_shell import PARTITIONS, SERVER, World, play
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.operators.hot_locks_shell import ask_hot_locks, ask_hottest_locks, hottest_of
from waltz.operators.questions_shell import ask_server
from waltz.types import Address, PartitionId, TransactionId
from waltz.wire.report_protocol import HotLock, HotLocksReport, RefusalsKept

NOTHING_KEPT = RefusalsKept(0, 0, -1)
LOCKS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 3)), max_size=6)


def report(locks: list[HotLock]) -> HotLocksReport:
    count = sum(each.refusals for each in locks)
    return HotLocksReport(0, RefusalsKept(count, count, 9), tuple(locks))


@given(st.lists(LOCKS, max_size=4), st.integers(1, 8))
def test_the_hottest_of_all_partitions_are_those_of_a_list_of_all_locks(
    partitions: list[list[tuple[int, int, int]]], count_max: int
) -> None:
    """Each partition tells only its own hottest ones, and none of all is missed."""
    everything = [
        (-refusals, age, number, lock_hash)
        for number, locks in enumerate(partitions)
        for lock_hash, refusals, age in locks
    ]
    answers = {}
    for number, locks in enumerate(partitions):
        own = sorted(locks, key=lambda each: (-each[1], each[2]))[:count_max]
        answers[PartitionId(number)] = report(
            [HotLock(of, refusals, 0, TransactionId(1), age) for of, refusals, age in own]
        )
    found = hottest_of(answers, count_max).locks
    shown = [(-each.lock.refusals, each.lock.age_milliseconds, each.partition_id) for each in found]
    assert shown == [each[:3] for each in sorted(everything)][:count_max]
    assert {(*place, each.lock.lock_hash) for place, each in zip(shown, found, strict=True)} <= {
        *everything
    }


def test_partitions_that_could_not_be_asked_are_told_together_by_their_reasons() -> None:
    gone, none = UnavailableError("gone"), UnavailableError("no server has it now")
    found = hottest_of(
        {
            PartitionId(7): gone,
            PartitionId(2): none,
            PartitionId(1): report([]),
            PartitionId(3): gone,
        },
        5,
    )
    assert found.unknown == [([2], "no server has it now"), ([3, 7], "gone")]
    assert [*found.asked] == [1]


def test_one_connection_asks_a_server_for_all_partitions_and_who_does_not_answer_is_named() -> None:
    """A partition of another server, one of a server that is gone, and one without a server."""
    elsewhere, gone, nobody = PartitionId(97), PartitionId(98), PartitionId(99)

    async def scene(_: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        servers: dict[PartitionId, Address | None] = dict.fromkeys((*PARTITIONS, elsewhere), SERVER)
        servers |= {gone: Address("server", 1), nobody: None}
        found = await ask_hottest_locks(host, servers, 5)
        assert found.locks == ()
        assert found.asked == dict.fromkeys(PARTITIONS, NOTHING_KEPT)
        assert found.unasked[nobody] == "no server has it now"
        assert found.unasked[elsewhere] == f"server {SERVER} does not have the partition now"
        assert "server:1" in found.unasked[gone]
        with pytest.raises(UnavailableError, match="does not have the partition now"):
            await ask_hot_locks(host, SERVER, elsewhere, 5)
        assert (await ask_hot_locks(host, SERVER, PARTITIONS[0], 5)).kept == NOTHING_KEPT

    play(scene, seeds=2)


def test_what_a_server_told_before_it_fell_silent_counts() -> None:
    """The time is over in the middle: the partitions that it has told are known, the others not."""

    async def scene(_: World, host: Host) -> None:
        while not all((await ask_server(host, SERVER)).partitions.values()):
            await asyncio.sleep(0.1)
        many = {PartitionId(each): SERVER for each in range(5_000)}
        found = await ask_hottest_locks(host, many, 5, seconds=0.2)
        assert [*found.asked] == [*PARTITIONS]
        (not_its_own, first), (left, last) = found.unknown
        assert first == f"server {SERVER} does not have the partition now"
        assert last == f"no answer from {SERVER} in 0.2 s"
        assert len(found.asked) + len(not_its_own) + len(left) == len(many)

    play(scene, seeds=1)
