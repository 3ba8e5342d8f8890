"""The live tail: samples of the newest transactions, read once for all viewers of the same tail.

Costs the cluster at most `TAIL_ROWS_MAX` transactions a second per tail, whatever is appended:
the marks are those that the poller has anyway, and only what is shown is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple

from waltz.console.log_window_shell import LogWindow
from waltz.console.picture import ClusterPicture
from waltz.console.plain_text import plain
from waltz.console.poller_shell import ClusterPoller
from waltz.console.tail_sample import TAIL_READ_BYTES_MAX, Row, sample
from waltz.errors import WaltzError
from waltz.types import PartitionId, TransactionId

TAILS_MAX: Final = 8
"""Different tails at a time; viewers of the same one share it."""


class TailKind(NamedTuple):
    """The partition, None for all, and whether data is shown."""

    partition_id: int | None
    with_data: bool


class LiveTails:
    """The tails that somebody follows."""

    def __init__(self, poller: ClusterPoller, window: LogWindow) -> None:
        self._poller = poller
        self._window = window
        self._tails: dict[TailKind, _Tail] = {}

    async def follow(self, kind: TailKind) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what each second brings, as JSON; the first one says if there are too many."""
        tail = self._tails.get(kind)
        if tail is None:
            if len(self._tails) >= TAILS_MAX:
                yield {"rows": [], "skipped": 0, "said": f"{TAILS_MAX} other tails are followed"
                       " already; close one of them"}  # fmt: skip
                return
            tail = self._tails[kind] = _Tail(kind, self._poller, self._window)
        tail.viewers += 1
        try:
            while True:
                changed = tail.changed
                await changed.wait()
                yield tail.last
        finally:
            tail.viewers -= 1
            if not tail.viewers:
                self._tails.pop(kind, None)
                await tail.stop()

    async def stop(self) -> None:
        for tail in list(self._tails.values()):
            await tail.stop()


class _Tail:
    def __init__(self, kind: TailKind, poller: ClusterPoller, window: LogWindow) -> None:
        self._kind = kind
        self._poller = poller
        self._window = window
        self._marks: dict[PartitionId, TransactionId] = {}
        self._turn = 0
        self.viewers = 0
        self.last: dict[str, Any] = {}
        self.changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with contextlib.aclosing(self._poller.pictures()) as pictures:
            async for picture in pictures:
                self.last = await self._read(_marks(picture, self._kind.partition_id))
                changed, self.changed = self.changed, asyncio.Event()
                changed.set()

    async def _read(self, marks: Mapping[PartitionId, TransactionId]) -> dict[str, Any]:
        """Return the sample of what is new, and take the marks for seen."""
        chosen = sample(self._marks, marks, self._turn)
        self._turn += 1
        self._marks |= marks
        rows: list[Row] = []
        skipped, size, said = chosen.skipped, 0, "" if marks else "No server tells its last commit."
        for wanted in chosen.ranges:
            if size >= TAIL_READ_BYTES_MAX or said:
                skipped += wanted.end - wanted.first
                continue
            try:
                found = await self._window.read(wanted, with_data=self._kind.with_data)
            except (WaltzError, TimeoutError) as error:
                said = f"Partition {wanted.partition_id} cannot be read: {plain(error)}"
                skipped += wanted.end - wanted.first
                continue
            rows += found
            size += sum(len(row.data or b"") for row in found)
        return {"rows": [row.to_json() for row in rows], "skipped": skipped, "said": said}


def _marks(picture: ClusterPicture, only: int | None) -> dict[PartitionId, TransactionId]:
    return {
        each.partition_id: TransactionId(each.mark)
        for each in picture.partitions
        if each.mark is not None and only in (None, each.partition_id)
    }
