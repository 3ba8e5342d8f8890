"""Keeps the progress of all partitions: one write of the file for all that have moved meanwhile."""

from __future__ import annotations

import asyncio
from typing import Final

from waltz.bridge.bridge_progress import BridgeProgress, PartitionProgress, ProgressFile
from waltz.host import Host

DUE_SECONDS: Final = 1.0
"""Moves past transactions that are left out are written this often; they can be made again."""


class ProgressKeeper:
    """Writes the file. `progress` is what the file has."""

    def __init__(self, host: Host, file: ProgressFile, progress: BridgeProgress) -> None:
        self.progress = progress
        self._host = host
        self._file = file
        self._moved: dict[int, PartitionProgress] = {}
        self._turn = asyncio.Lock()
        self._saved_at = host.clock.now()

    def of(self, partition_id: int) -> PartitionProgress:
        """Return the progress of a partition, as far as it has come."""
        return self._moved.get(partition_id) or self.progress.partitions[partition_id]

    async def move(self, partition_id: int, to: PartitionProgress, *, is_due: bool) -> None:
        """Return once the file has it; if not `is_due`, perhaps before. Raises OSError."""
        self._moved[partition_id] = to
        if is_due or self._host.clock.now() - self._saved_at >= DUE_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Write what has moved. Raises OSError: whether the file has it is unknown.

        A caller that is cancelled stops waiting; its write keeps its turn until the disk is done,
        for two at a time would change one file.
        """
        await asyncio.shield(self._write())

    async def _write(self) -> None:
        async with self._turn:
            moved = dict(self._moved)
            if not moved:
                return  # the turn before has written it
            progress = self.progress.reaching(moved)
            await self._host.workers.run_blocking(lambda: self._file.save(progress))
            self.progress = progress
            self._saved_at = self._host.clock.now()
            for each, to in moved.items():
                if self._moved.get(each) == to:
                    del self._moved[each]
