"""Clients and readers of applications at a server over TLS whose policy denies them something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION
from tests.server.test_enforcement_shell import POLICY, Setting, play
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import PermissionDeniedError, PermissionLostError
from waltz.host import Host
from waltz.reader.reader_shell import AsyncLogReader
from waltz.types import Address, PartitionId

GRANTED = PartitionId(PARTITION)
DENIED = PartitionId(1)


def client(
    setting: Setting, name: str, application: Recorder | None = None, **options: object
) -> AsyncWaltzClient:
    return AsyncWaltzClient(
        setting.someone(name),
        application or Recorder(),
        ClientOptions(**options),  # type: ignore[arg-type]
    )


async def raises(call: Awaitable[object]) -> PermissionDeniedError:
    with pytest.raises(PermissionDeniedError) as raised:
        await asyncio.wait_for(call, 120.0)
    return raised.value


def test_a_client_follows_what_it_is_granted_and_says_what_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        application = Recorder()
        async with client(setting, "orders", application) as orders:
            assert await orders.append(GRANTED, b"granted") == 0
            await until(lambda: len(orders.denied_partitions()) == GRANTED)
            assert sorted(orders.denied_partitions()) == [0, 1, 2]
            assert orders.denied_partitions()[DENIED].principal == "spiffe://tests/orders"
            lines = [each.getMessage() for each in caplog.records if "denied" in each.msg]
            told = [each for each in lines if each.startswith("partition_denied")]
            assert len(told) == GRANTED
            error = await raises(orders.append(DENIED, b"denied"))
            assert (error.verb, error.partition) == ("read", DENIED)
            assert not error.may_be_written
            await raises(orders.append_many(DENIED, [b"denied"] * 9))
            await raises(orders.wait_until_applied(partitions=[DENIED]))
            await raises(orders.wait_until_applied())
            await raises(orders.get_high_water_mark(DENIED))
            assert await orders.get_high_water_mark(GRANTED) == 0
            assert await orders.wait_until_applied(partitions=[GRANTED]) == {GRANTED: 0}
            metrics = {each.partition_id: each for each in orders.metrics().partitions}
            assert [metrics[PartitionId(each)].is_denied for each in (1, 3)] == [True, False]
        assert application.data == [b"granted"]

    play(tmp_path, scene)


def test_an_append_with_a_denied_header_raises_and_others_are_written(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        async with client(setting, "orders", partitions=[GRANTED]) as orders:
            error = await raises(orders.append(GRANTED, b"denied", header=5))
            assert (error.verb, error.partition) == ("append", GRANTED)
            assert error.principal == "spiffe://tests/orders"
            assert not error.may_be_written
            assert await orders.append(GRANTED, b"granted") == 0
            assert orders.denied_partitions() == {}
            raised = [
                asyncio.create_task(orders.append(GRANTED, b"%d" % each, header=5 * (each == 2)))
                for each in range(5)
            ]
            results = await asyncio.gather(*raised, return_exceptions=True)
            denied = [each for each in results if isinstance(each, PermissionDeniedError)]
            assert denied, "those of one batch are denied together"
            written = await orders.get_high_water_mark(GRANTED)
            assert written == 5 - len(denied)

    play(tmp_path, scene)


def test_rows_with_a_denied_header_raise(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        async with client(setting, "orders", partitions=[GRANTED]) as orders:
            headers = np.zeros(10_000, np.int32)
            headers[-1] = 5
            error = await raises(orders.append_many(GRANTED, [b"row"] * 10_000, headers=headers))
            assert isinstance(error, PermissionLostError), "the first rows went before"
            assert len(await orders.append_many(GRANTED, [b"row"] * 10)) == 10

    play(tmp_path, scene)


def test_a_policy_that_takes_a_partition_back_ends_what_waits_and_a_third_one_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltz.client.partitions.mounting.DENIED_SECONDS", 0.5)

    async def scene(setting: Setting) -> None:
        application = Recorder()
        async with client(setting, "orders", application, partitions=[GRANTED]) as orders:
            assert await orders.append(GRANTED, b"before") == 0
            waiting = asyncio.create_task(
                orders.wait_until_applied(token=orders.token({GRANTED: 9}))
            )
            setting.policy.write_text(POLICY.replace("partitions: 3", "partitions: 1"))
            assert (await raises(waiting)).verb == "read"
            await raises(orders.append(GRANTED, b"between"))
            setting.policy.write_text(POLICY.replace("version: 7", "version: 8"))
            await until(lambda: not orders.denied_partitions())
            assert await orders.append(GRANTED, b"after") == 1
            connections = orders.metrics().connections_opened
            assert connections == 2, "one for each role: none was ended"
        assert application.data == [b"before", b"after"]

    play(tmp_path, scene)


def test_a_reader_raises_what_it_is_denied_and_reads_what_it_is_granted(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        async with client(setting, "orders", partitions=[GRANTED]) as orders:
            await orders.append(GRANTED, b"row")
        async with AsyncLogReader(setting.someone("orders"), timeout_seconds=20.0) as reader:
            assert await reader.high_water_mark(GRANTED) == 0
            assert [len(each) async for each in reader.read(GRANTED, 0, 1)] == [1]
            error = await raises(reader.high_water_mark(DENIED))
            assert (error.verb, error.partition) == ("read", DENIED)
            marks = await reader.high_water_marks([DENIED, GRANTED])
            assert marks == {DENIED: -1, GRANTED: 0}, "who reads somewhere learns all marks"
            await raises(anext(reader.read(DENIED, 0, 1)))
            await raises(anext(reader.follow(DENIED, 0)))

    play(tmp_path, scene)


def test_who_may_not_be_connected_learns_it_at_the_start(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        servers: tuple[Address, ...] = (setting.server.address,)
        nobody = setting.someone("nobody")
        reader = AsyncLogReader(nobody, timeout_seconds=20.0, servers=servers)
        assert (await raises(reader.start())).verb == "connect"
        error = await raises(client(setting, "nobody", servers=servers).start())
        assert (error.verb, error.partition) == ("connect", None)

    play(tmp_path, scene)


def test_a_client_for_threads_raises_the_same(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        def use() -> None:
            def new_host() -> tuple[Host, Callable[[], None]]:
                return setting.someone_without_coordinator("orders"), lambda: None

            options = ClientOptions(servers=(setting.server.address,))
            with WaltzClient(new_host, Recorder(), options) as orders:
                assert orders.append(GRANTED, b"granted") == 0
                with pytest.raises(PermissionDeniedError, match="denies read at partition 1"):
                    orders.append(DENIED, b"denied")
                with pytest.raises(PermissionDeniedError, match="with header 5"):
                    orders.append(GRANTED, b"denied", header=5)
                with pytest.raises(PermissionDeniedError):
                    orders.wait_until_applied()

        await asyncio.to_thread(use)

    play(tmp_path, scene)
