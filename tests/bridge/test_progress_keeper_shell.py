"""The keeper of the progress: what is on the disk when a partition goes on."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from waltz.bridge.bridge_progress import BridgeProgress, PartitionProgress, ProgressFile
from waltz.bridge.progress_keeper_shell import ProgressKeeper
from waltz.system.real_disk import RealDisk
from waltz.system.real_host import real_host
from waltz.types import TlsSettings

KEY = UUID(int=1)


class CountedFile(ProgressFile):
    """Counts the writes; fails those that it is told to."""

    writes = 0
    fails = False

    def save(self, progress: BridgeProgress) -> None:
        self.writes += 1
        if self.fails:
            raise OSError(28, "no space")
        super().save(progress)


class SlowFile(CountedFile):
    """Holds the first write up, as a slow disk does, until `may_end`; counts writes at a time."""

    def __init__(self, path: str) -> None:
        super().__init__(RealDisk(), path)
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.under_way = self.under_way_max = 0

    def save(self, progress: BridgeProgress) -> None:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        self.has_begun.set()
        self.may_end.wait(60)
        super().save(progress)
        self.under_way -= 1


def place(next_id: int) -> PartitionProgress:
    return PartitionProgress(next_id, KEY)


def keeper_of(directory: Path) -> tuple[ProgressKeeper, CountedFile]:
    file = CountedFile(RealDisk(), str(directory / "p.json"))
    begun = BridgeProgress(KEY, {each: place(0) for each in range(50)})
    file.save(begun)
    file.writes = 0
    return ProgressKeeper(real_host(None, TlsSettings()), file, begun), file


def next_ids(file: ProgressFile) -> list[int]:
    found = file.load()
    assert found is not None
    return [each.next_id for each in found.partitions.values()]


def test_all_that_moves_while_the_file_is_written_comes_with_the_next_write(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        keeper, file = keeper_of(tmp_path)

        async def move(number: int) -> None:
            await keeper.move(number, place(number + 7), is_due=True)
            assert next_ids(file)[number] == number + 7

        await asyncio.gather(*map(move, range(50)))
        assert next_ids(file) == [each + 7 for each in range(50)]
        assert file.writes <= 2

    asyncio.run(main())


def test_what_is_not_due_is_written_with_what_is(tmp_path: Path) -> None:
    async def main() -> None:
        keeper, file = keeper_of(tmp_path)
        await keeper.move(1, place(9), is_due=False)
        assert (file.writes, next_ids(file)[1], keeper.of(1)) == (0, 0, place(9))
        await keeper.move(2, place(5), is_due=True)
        assert next_ids(file)[:3] == [0, 9, 5]

    asyncio.run(main())


def test_a_write_that_fails_is_told_and_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        keeper, file = keeper_of(tmp_path)
        file.fails = True
        with pytest.raises(OSError, match="no space"):
            await keeper.move(1, place(9), is_due=True)
        assert next_ids(file)[1] == 0
        file.fails = False
        await keeper.flush()
        assert next_ids(file)[1] == 9

    asyncio.run(main())


def test_a_write_that_nobody_awaits_any_more_ends_before_the_next_begins(tmp_path: Path) -> None:
    """Both write the same new file, and one would change it after it has become the progress."""

    async def main() -> None:
        file = SlowFile(str(tmp_path / "p.json"))
        host = real_host(None, TlsSettings())
        keeper = ProgressKeeper(host, file, BridgeProgress(KEY, {0: place(0), 1: place(0)}))
        abandoned = asyncio.create_task(keeper.move(0, place(7), is_due=True))
        await host.workers.run_blocking(file.has_begun.wait)
        abandoned.cancel()
        with suppress(asyncio.CancelledError):
            await abandoned
        assert abandoned.cancelled(), "it does not wait for the disk"
        last = asyncio.create_task(keeper.move(1, place(9), is_due=True))
        for _ in range(20):  # a second write has time to begin
            await host.workers.run_blocking(lambda: None)
        file.may_end.set()
        await last
        assert file.under_way_max == 1
        assert next_ids(file) == [7, 9]

    asyncio.run(main())
