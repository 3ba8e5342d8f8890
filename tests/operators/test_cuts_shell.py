"""Cuts of a real server: over sockets, with a coordinator, under load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.server.logical_caller import LogicalCaller
from tests.server.real_server import running_server
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import ClusterPaths
from waltz.errors import CutNotMadeError, NoNodeError
from waltz.host import Host
from waltz.operators.cuts_shell import CANNOT_HOLD, Cut, take_cut
from waltz.types import Generation, PartitionId, TransactionId
from waltz.wire.cut_protocol import (
    HoldAnswer,
    HoldName,
    HoldReleaseAnswer,
    HoldReleaseRequest,
    HoldRequest,
)
from waltz.wire.lifecycle_protocol import FEATURES, Feature

P0 = PartitionId(0)


async def some_cut(host: Host) -> Cut:
    """The first attempts may come before the partition's server has opened it, and on a busy
    machine any attempt may take too long."""
    while True:
        try:
            return await take_cut(host)
        except CutNotMadeError:
            continue


def test_a_cut_has_the_marks_of_all_partitions_and_holds_up_no_append(
    tmp_path: Path,
) -> None:

    async def play() -> None:
        async with running_server(tmp_path) as (host, _):
            empty = await some_cut(host)
            assert empty.marks == {P0: -1}
            async with AsyncWaltzClient(host, Recorder()) as client:
                assert [*await client.append_many(0, [b"a", b"b"])][-1] == 1
                cut = await some_cut(host)
                assert cut.marks == {P0: 1}
                assert cut.attempts == len(cut.hold_seconds) >= 1
                assert cut.made_at >= empty.made_at
                assert [*await client.append_many(0, [b"c"])][-1] == 2
            node = await host.coordinator.read(ClusterPaths().cut)
            assert node.data == b"%d" % cut.made_at

    asyncio.run(play())


def test_a_server_that_cannot_hold_is_named_with_the_remedy(tmp_path: Path) -> None:

    async def play() -> None:
        async with running_server(tmp_path, protocol_version_max=4) as (host, server):
            told: dict[int, Sequence[str]] = {}
            expected = f"server {server.address}: {CANNOT_HOLD}"
            while expected not in told.get(1, ()):  # the server has its partition a little later
                with pytest.raises(CutNotMadeError) as raised:
                    await take_cut(host, attempts_max=1, on_obstacle=told.__setitem__)
            assert told == {1: [expected]}
            assert str(raised.value) == (
                f"no cut was made in 1 attempts; in the last one: {expected}"
            )

    asyncio.run(play())


def test_without_a_cluster_there_is_no_cut(tmp_path: Path) -> None:

    async def play() -> None:
        async with running_server(tmp_path) as (host, _):
            with pytest.raises(NoNodeError):
                await take_cut(host, "/nowhere")

    asyncio.run(play())


def test_a_server_holds_for_50_ms_at_most_and_once_per_second(tmp_path: Path) -> None:

    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            await some_cut(host)
            caller = await LogicalCaller.connect(host, server.address)
            assert Feature.CUTS in caller.agreed.features & FEATURES
            for milliseconds in (51, 0, -1, 2**31 - 1):
                caller.say(HoldRequest(milliseconds, milliseconds))
                refused = await caller.hear(HoldAnswer)
                text = f"a hold of {milliseconds} ms; expected 1 to 50"
                assert refused == HoldAnswer(milliseconds, text, (), ())
            caller.say(HoldRequest(7, 50))
            again = await caller.hear(HoldAnswer)
            assert again.held == ()
            assert again.not_held[0].reason.startswith("the last hold began less than 1 s ago")
            caller.say(HoldReleaseRequest(8, (HoldName(P0, 1), HoldName(PartitionId(9), 1))))
            unknown = await caller.hear(HoldReleaseAnswer)
            assert unknown.unbroken == ()
            assert {each.partition_id for each in unknown.broken} == {0, 9}
            caller.connection.close()

    asyncio.run(play())


def test_a_hold_delays_the_feed_and_ends_without_a_release(tmp_path: Path) -> None:
    """As after the tool was killed: the append is announced when the hold's time is over."""

    async def play() -> None:
        async with (
            running_server(tmp_path) as (host, server),
            AsyncWaltzClient(host, Recorder()) as client,
        ):
            await client.append_many(0, [b"a"])
            caller = await LogicalCaller.connect(host, server.address)
            caller.say(HoldRequest(7, 50))
            (held,) = (await caller.hear(HoldAnswer)).held
            assert held[:2] == (P0, Generation(1))
            assert held.high_water_mark == TransactionId(0)
            appended = await client.append_many(0, [b"b"])
            assert [*appended] == [1]
            caller.say(HoldReleaseRequest(8, (HoldName(P0, held.hold_id),)))
            ended = await caller.hear(HoldReleaseAnswer)
            assert ended.unbroken == ()
            assert ended.broken[0].reason == "it has lasted as long as was asked for"
            caller.connection.close()

    asyncio.run(play())


def test_a_cut_that_is_given_up_leaves_no_hold(tmp_path: Path) -> None:
    """Its connections end, and with them its holds."""

    async def play() -> None:
        async with running_server(tmp_path) as (host, _):
            await some_cut(host)
            for _ in range(3):
                taking = asyncio.ensure_future(take_cut(host))
                await asyncio.sleep(0)
                taking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await taking
            assert (await some_cut(host)).marks == {P0: -1}

    asyncio.run(play())
