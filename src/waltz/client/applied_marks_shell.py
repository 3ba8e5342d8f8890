"""Tells servers how far a client's application has applied each partition, for operators.

Owns the timer. A mark is told at most every TELL_SECONDS, and again only once it has moved: an idle
client tells nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.client.untold_marks import AppliedPosition, UntoldMarks
from waltz.types import PartitionId
from waltz.wire.clients_protocol import AppliedMarks

TELL_SECONDS: Final = 0.5
"""From a change of a mark until the servers are told, at most."""


class AppliedMarksTeller:
    """See the module. `runners` are the partitions that are active at the moment; `send` sends on a
    stream connection, if its server takes marks. `is_silent`: nothing is told."""

    def __init__(
        self,
        runners: Mapping[PartitionId, PartitionRunner],
        send: Callable[[int, AppliedMarks], None],
        *,
        is_silent: bool,
    ) -> None:
        self._runners = runners
        self._send = send
        self._is_silent = is_silent
        self._untold = UntoldMarks()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, partition_id: PartitionId) -> None:
        """The partition's mark is about to move, or the partition is mounted."""
        if self._is_silent:
            return
        self._untold.note(partition_id)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tick)

    def stop(self) -> None:
        """Tell the last marks, and tell nothing more."""
        self._is_silent = True
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _tick(self) -> None:
        self._timer = None
        self._tell()
        if self._untold:
            self._timer = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tick)

    def _tell(self) -> None:
        for stream, marks in self._untold.take(self._position_of):
            self._send(stream, marks)

    def _position_of(self, partition_id: PartitionId) -> AppliedPosition | None:
        runner = self._runners.get(partition_id)
        if runner is None:
            return None
        application = runner.application
        return AppliedPosition(
            runner.machine.mounted_stream,
            application.high_water_mark,
            not application.idle.is_set(),
        )
