"""A node on a real file system that fills: real files, real blocks, real loopback (SN-28)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from tests.storage.independent_reader import read_independently
from tests.storage.small_disk import SmallDisk
from tests.storage.support import SESSION, batch, record_data, t
from tests.storage.talkers import P0, Talker, admin_talker, config, data_talker
from waltz.storage.directory.space import FreeMinimum
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import SessionId
from waltz.wire.admin_protocol import AdminLastSessionInfoRequest, AdminLastSessionInfoResponse
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    RecordListRequest,
    RecordListResponse,
    SetLowWaterMarkRequest,
    SuccessResponse,
)

MIB = 1 << 20
SIZE = MIB
"""Data of a record."""


def run_node(
    directory: Path, capacity: int, test: Callable[[StorageNode, SmallDisk], Awaitable[None]]
) -> None:
    async def main() -> None:
        disk = SmallDisk(directory, capacity)
        node = StorageNode(
            replace(real_host(None), disk=disk),
            config(directory, disk_free_minimum=FreeMinimum.parse("20MiB")),
        )
        await node.start()
        try:
            await asyncio.wait_for(test(node, disk), 60)
        finally:
            await node.stop()

    asyncio.run(main())


def append(number: int, session: int = 0) -> Message:
    return AppendRecordsRequest(
        SessionId(session), number, P0, batch(number, 1, size=SIZE), offline=False
    )


async def fill(talker: Talker, first: int) -> tuple[int, str]:
    """Append until that is refused; return how much there is then, and why."""
    number = first
    while isinstance(answer := await talker.ask(append(number)), SuccessResponse):
        number += 1
    assert isinstance(answer, FailureResponse)
    return number, answer.message


async def until_appended(talker: Talker, number: int, session: int = 0) -> None:
    while isinstance(await talker.ask(append(number, session)), FailureResponse):
        """Room is found within a second."""


def test_a_node_stops_appending_before_its_disk_is_full_and_goes_on_when_it_is_not(
    tmp_path: Path,
) -> None:
    appended = 0

    async def test(node: StorageNode, disk: SmallDisk) -> None:
        nonlocal appended
        talker = await data_talker(node)
        count, text = await fill(talker, 0)
        assert "no space for appends" in text
        assert 20 <= count <= 44
        assert disk.used_bytes <= disk.capacity_bytes - 16 * MIB  # of 20, both may reserve ahead
        answer = await talker.ask(RecordListRequest(SESSION, 1, P0, t(count - 1), 1))
        assert isinstance(answer, RecordListResponse)
        assert [record.data for record in answer.records.records()] == [
            record_data(count - 1).ljust(SIZE)
        ]
        disk.capacity_bytes += 20 * MIB
        await until_appended(talker, count)
        appended = count + 1

    run_node(tmp_path, 80 * MIB, test)
    files = [(tmp_path / "0" / f"{0:019d}.{suffix}").read_bytes() for suffix in ("seg", "idx")]
    assert len(read_independently(*files)) == appended


def test_a_disk_that_others_fill_between_two_looks_tears_nothing(tmp_path: Path) -> None:
    """Sessions start, marks are kept and tools answer although not one block is free."""
    appended = 0

    async def test(node: StorageNode, disk: SmallDisk) -> None:
        nonlocal appended
        talker, admin = await data_talker(node), await admin_talker(node)
        await talker.ask(append(0))
        had, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes
        count, _ = await fill(talker, 1)
        mark = SetLowWaterMarkRequest(SessionId(1), 1, P0, t(count - 1), offline=False)
        while isinstance(await talker.ask(mark), FailureResponse):
            """The reserve is given back within a second."""
        answer = await admin.ask(AdminLastSessionInfoRequest(1, P0))
        assert isinstance(answer, AdminLastSessionInfoResponse)
        assert answer.session_info.local_low_water_mark == count - 1
        assert "no space" in await talker.refusal(append(count, session=1))
        disk.capacity_bytes = had
        await until_appended(talker, count, session=1)
        appended = count + 1

    run_node(tmp_path, 128 * MIB, test)
    files = [(tmp_path / "0" / f"{0:019d}.{suffix}").read_bytes() for suffix in ("seg", "idx")]
    assert len(read_independently(*files)) == appended
