"""A node that is stopped and started again and again while servers write to it (SN-30)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.storage.support import SESSION, batch, record_data
from tests.storage.talkers import P0, P1, append, config, data_talker, load, next_of
from waltz.host import File
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_disk import RealDisk, RealFile
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TransactionId
from waltz.wire.storage_protocol import (
    RecordListRequest,
    RecordListResponse,
    SuccessResponse,
)

ROUNDS = 100


def test_what_was_answered_is_there_after_a_hundred_stops_under_load(tmp_path: Path) -> None:
    """The lock is free and no file is left open each time."""
    answered = {P0: 0, P1: 0}

    async def round_of() -> None:
        node = StorageNode(real_host(None), config(tmp_path))
        await node.start()
        under_way = asyncio.Event()
        silent = {P0, P1}

        def note(partition: PartitionId, next_transaction_id: int) -> None:
            answered[partition] = max(answered[partition], next_transaction_id)
            silent.discard(partition)
            if not silent:
                under_way.set()

        loads = [
            asyncio.create_task(load(await data_talker(node), partition, partial(note, partition)))
            for partition in (P0, P1)
        ]
        await under_way.wait()
        await node.stop()
        await asyncio.gather(*loads)
        release = RealDisk().lock(str(tmp_path / "waltz-storage.ctl"))
        release()

    async def look() -> None:
        node = StorageNode(real_host(None), config(tmp_path))
        await node.start()
        for partition, known in answered.items():
            talker = await data_talker(node)
            count = await next_of(talker, partition)
            assert count >= known
            found = 0
            while found < count:
                answer = await talker.ask(
                    RecordListRequest(SESSION, 1, partition, TransactionId(found), 1000)
                )
                assert isinstance(answer, RecordListResponse), answer
                for record in answer.records.records():
                    assert record.transaction_id == found
                    assert record.data == record_data(found)
                    found += 1
            talker.connection.close()
        await node.stop()

    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(ROUNDS):
        asyncio.run(round_of())
    asyncio.run(look())
    assert min(answered.values()) >= ROUNDS / 2
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 1


class HeldFile(RealFile):
    """Its syncs wait for `gate`; `reached` tells that one does."""

    gate = threading.Event()
    reached = threading.Event()

    def sync(self) -> None:
        self.reached.set()
        assert self.gate.wait(60)
        super().sync()


class HeldDisk(RealDisk):
    is_held = False

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        if self.is_held and path.endswith(".seg"):
            assert isinstance(file, RealFile)
            return HeldFile(file._descriptor, path)
        return file


def test_what_was_received_is_finished_and_answered(tmp_path: Path) -> None:
    """One append is in the disk's hands and others wait for it when the node is told to stop."""
    disk = HeldDisk()
    HeldFile.gate.clear()
    HeldFile.reached.clear()

    async def main() -> None:
        disk.is_held = False
        node = StorageNode(replace(real_host(None), disk=disk), config(tmp_path))
        HeldFile.gate.set()
        disk.is_held = True
        await node.start()
        HeldFile.gate.clear()
        HeldFile.reached.clear()
        talker = await data_talker(node)
        talker.send(append(0, 0, 3))
        await asyncio.to_thread(HeldFile.reached.wait, 60)
        talker.send(append(1, 3, 1), append(2, 4, 1))
        queue = node._queues[P0]
        while queue._waiting_requests < 2:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        (state, _) = node.state().partitions
        assert (state.queue_requests >= 2, state.call_seconds > 0) == (True, True)
        HeldFile.gate.set()
        assert await talker.receive(3) == [
            SuccessResponse(SESSION, number, P0) for number in range(3)
        ]
        assert await talker.connection.read() == b""
        await stopping

    asyncio.run(main())
    assert batch(0, 3).block in (tmp_path / "0" / "0000000000000000000.seg").read_bytes()
