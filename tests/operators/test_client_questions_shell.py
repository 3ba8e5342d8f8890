"""A server is asked for its clients, over real sockets; some of the clients are hostile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.server.logical_caller import LogicalCaller
from tests.server.real_server import running_server
from tests.server.test_forged_mounts import until_open
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.logical_handshake import Handshake
from waltz.errors import PostponedError, UnavailableError
from waltz.host import Host
from waltz.log_fields import printable
from waltz.operators.client_questions_shell import (
    Lag,
    ServerClients,
    ask_all_clients,
    ask_clients,
)
from waltz.reader.reader_shell import AsyncLogReader
from waltz.types import (
    NOTHING,
    Address,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)
from waltz.wire.client_label import CLIENT_LABEL_EXTENSION, ClientLabel, label_extension
from waltz.wire.client_protocol import MountRequest, MountResponse, MountState
from waltz.wire.clients_protocol import AppliedMark, AppliedMarks

P0 = PartitionId(0)
NAMED = ClientOptions(name="orders", instance="orders-7", program="shop.py")


async def asked_until(
    host: Host, address: Address, is_right: Callable[[ServerClients], bool]
) -> ServerClients:
    while not is_right(found := await ask_clients(host, address)):
        await asyncio.sleep(0.05)
    assert found.is_complete
    assert found.age_seconds < 60.0
    return found


def has_applied(mark: int) -> Callable[[ServerClients], bool]:
    def is_right(found: ServerClients) -> bool:
        return any(each.mounts[0].applied == mark for each in found.clients)

    return is_right


def test_a_named_client_is_shown_with_its_mark_and_without_lag_once_it_has_applied_all(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            async with AsyncWaltzClient(host, Recorder(), NAMED) as client:
                for _ in range(3):
                    await client.append(0, b"x")
                found = await asked_until(host, server.address, has_applied(2))
                (shown,) = found.clients
                assert (shown.name, shown.instance, shown.program) == (
                    "orders", "orders-7", "shop.py",
                )  # fmt: skip
                assert (shown.client_id, shown.principal) == (client.client_id, "")
                assert shown.tells_marks
                assert shown.is_connected
                assert shown.protocol_version == 5
                (mount,) = shown.mounts
                assert (mount.lag, mount.lag_transactions, mount.writes) == (Lag(0, 0), 0, True)
                assert (mount.high_water_mark, mount.sent) == (2, 2)
                assert found.high_water_marks == {P0: 2}
                assert found.generations == {P0: 1}
            await asked_until(host, server.address, lambda found: not found.clients)

    asyncio.run(play())


def test_a_client_that_only_follows_is_at_the_head_of_an_idle_log(tmp_path: Path) -> None:
    """A server hears of it from feed requests only every hundred transactions."""

    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            writer = AsyncWaltzClient(host, Recorder(), ClientOptions())
            async with AsyncWaltzClient(host, Recorder(), NAMED), writer:
                for _ in range(7):
                    await writer.append(0, b"x")

                def is_at_head(found: ServerClients) -> bool:
                    return any(
                        each.name == "orders" and each.mounts[0].lag_transactions == 0
                        for each in found.clients
                    )

                found = await asked_until(host, server.address, is_at_head)
                follower = next(each for each in found.clients if each.name == "orders")
                nameless = next(each for each in found.clients if each.name is None)
                assert follower.mounts[0].lag == Lag(0.0, 0.0)
                assert not follower.mounts[0].writes
                assert nameless.mounts[0].applied == 5  # when it appended last
                assert nameless.mounts[0].lag_transactions == 1

    asyncio.run(play())


def test_a_slow_application_lags_by_the_time_since_the_first_that_it_has_not_applied(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            slow = Recorder()
            slow.failures[0] = PostponedError("waits for somebody else", 3_600.0)
            writer = AsyncWaltzClient(host, Recorder(), ClientOptions())
            async with AsyncWaltzClient(host, slow, NAMED), writer:
                for _ in range(3):
                    await writer.append(0, b"x")

                def lags(found: ServerClients) -> bool:
                    return any(
                        (lag := each.mounts[0].lag) is not None and lag.least_seconds > 0.5
                        for each in found.clients
                        if each.name == "orders"
                    )

                found = await asked_until(host, server.address, lags)
                (mount,) = next(each for each in found.clients if each.name == "orders").mounts
                assert mount.applied == NOTHING
                assert mount.lag_transactions == 3

    asyncio.run(play())


def test_clients_of_earlier_versions_and_readers_are_shown_by_what_is_known_of_them(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            old = ClientOptions(protocol_version_max=4, name="never told")
            async with (
                AsyncWaltzClient(host, Recorder(), old) as writer,
                AsyncLogReader(host, name="export", instance="1") as reader,
            ):
                await writer.append(0, b"x")
                feed = reader.follow(0, 0)
                async for _ in feed:
                    break
                found = await asked_until(
                    host, server.address, lambda found: len(found.clients) == 2
                )
                shown = {each.name: each for each in found.clients}
                assert shown[None].protocol_version == 4
                assert shown[None].client_id == writer.client_id
                assert not shown[None].tells_marks
                assert not shown["export"].tells_marks
                assert shown["export"].mounts[0].applied is None
                assert shown["export"].mounts[0].lag_transactions is None
                await feed.aclose()

    asyncio.run(play())


def test_all_servers_are_asked_and_an_error_is_the_answer_of_one_that_is_gone(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            gone = Address("127.0.0.1", 1)
            answers = await ask_all_clients(host, [server.address, gone])
            assert isinstance(answers[server.address], ServerClients)
            assert isinstance(answers[gone], UnavailableError)

    asyncio.run(play())


def test_a_server_of_an_earlier_release_cannot_say(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_server(tmp_path, protocol_version_max=4) as (host, server):
            with pytest.raises(UnavailableError, match="cannot say who its clients are"):
                await ask_clients(host, server.address)

    asyncio.run(play())


# Hostile peers

HOSTILE_LABELS = (
    b"",
    b"\x7f\xff\xff\xff",
    b"\xff" * 40,
    label_extension(ClientLabel("a\x1b[2Jb"))[1],
    label_extension(ClientLabel("../../store"))[1],
    label_extension(ClientLabel("n" * 5_000))[1],
    label_extension(ClientLabel("a b", is_consumer=True))[1],
    label_extension(ClientLabel("ok", instance="\u202egpj.exe"))[1],
)


@pytest.mark.parametrize("data", HOSTILE_LABELS)
def test_what_is_no_label_ends_the_handshake_and_nobody_else_notices(
    data: bytes, tmp_path: Path
) -> None:
    async def play() -> None:
        async with (
            running_server(tmp_path) as (host, server),
            AsyncWaltzClient(host, Recorder(), NAMED) as client,
        ):
            request = replace(Handshake().request, extensions=((CLIENT_LABEL_EXTENSION, data),))
            with pytest.raises(EOFError):
                await LogicalCaller.connect(host, server.address, request)
            assert await client.append(0, b"x") == 0

    asyncio.run(play())


def test_marks_that_nobody_may_tell_are_not_kept(tmp_path: Path) -> None:
    """A mark of a partition that is not mounted or does not exist, or beyond the end of its log."""

    async def play() -> None:
        async with running_server(tmp_path) as (host, server):
            await until_open(server)
            caller = await LogicalCaller.connect(host, server.address)
            lies = [
                AppliedMark(PartitionId(each), TransactionId(5)) for each in (0, 1, -1, 2**31 - 1)
            ]
            caller.say(AppliedMarks(tuple(lies)))
            request_id = RequestId(ClientId(77), Generation(1), P0, 1)
            caller.say(MountRequest(request_id, NOTHING, 1))
            assert (await caller.hear(MountResponse)).state is MountState.READY
            (shown,) = (await ask_clients(host, server.address)).clients
            assert shown.mounts[0].applied is None
            caller.say(AppliedMarks((AppliedMark(P0, TransactionId(2**62)), *lies[1:])))

            def is_ahead(found: ServerClients) -> bool:
                return found.clients[0].mounts[0].applied == 2**62

            found = await asked_until(host, server.address, is_ahead)
            (mount,) = found.clients[0].mounts
            assert (mount.lag, mount.lag_transactions) == (None, None)

    asyncio.run(play())


def test_texts_of_a_hostile_server_are_escaped() -> None:
    assert printable("a\x1b[2J\u202eb ä") == "a\\x1b[2J\\u202eb ä"
