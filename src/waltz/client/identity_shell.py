"""The client ID that a client uses, and its replacement by the next one.

A client ID has 2^31 sequence numbers per partition. Before a partition has used them up the client
takes another client ID, waits until every partition has a verdict on everything it has sent, and
opens its streams anew: a connection speaks for one client ID, and a server keeps the order of one
client ID only. See docs/decisions/0025-renewed-client-ids.md. It does the same at once when the
coordinator was set back (docs/decisions/0060-numbers-after-a-coordinators-backup.md).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from waltz.client.partitions.client_partition_events import (
    AppendsHeld,
    AppendsSettled,
    ClientIdRenewed,
    ClientIdRunsOut,
)
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.connections.sources_shell import ClusterSource
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    CoordinationError,
    PermissionDeniedError,
    ProtocolError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.types import ClientId, PartitionId

DOUBT_SECONDS_MIN: Final = 1.0
"""Time between two replacements of a doubtful client ID: a server that names ever higher
generations must not have its clients write to the coordinator as often as they can."""

logger = logging.getLogger(__name__)


class ClientIdentity:
    """See the module. `runners` are the partitions that are active at the moment; `open_streams`
    replaces the stream connections by new ones."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        source: ClusterSource,
        runners: Mapping[PartitionId, PartitionRunner],
        client_id: ClientId,
        open_streams: Callable[[], None],
    ) -> None:
        self.client_id = client_id
        self._host = host
        self._tasks = tasks
        self._source = source
        self._runners = runners
        self._open_streams = open_streams
        self._is_holding = False
        self._is_doubtful = False
        """Whether another client may have the client ID, too, or the one that was taken last."""
        self._doubted_at = -math.inf
        """Time of the last replacement of a doubtful client ID, by the loop's clock."""
        self._renewing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._sequence_numbers: dict[PartitionId, int] = {}
        """The last numbers of partitions that are no longer active: a request ID must not be used
        twice."""

    def last_number(self, partition_id: PartitionId) -> int:
        """Return the last sequence number of the client ID in a partition that becomes active."""
        return self._sequence_numbers.get(partition_id, 0)

    def welcome(self, runner: PartitionRunner) -> None:
        """Take note that a partition has become active."""
        if self._is_holding:
            runner.mailbox.put(AppendsHeld())

    def forget(self, runner: PartitionRunner) -> None:
        """Take note that a partition is no longer active."""
        self._sequence_numbers[runner.partition_id] = runner.machine.own.numbers.last
        self._changed.set()

    def see_to(self, effect: ClientIdRunsOut | AppendsSettled) -> None:
        """Handle a partition's request for another client ID, or its report that its appends are
        held and all decided."""
        if isinstance(effect, ClientIdRunsOut) and self._renewing is None:
            self._renewing = self._tasks.start(self._renew())
        self._changed.set()

    def doubt(self) -> None:
        """Take another client ID, and send nothing more under this one: the coordinator was set
        back, and may have given it twice."""
        self._is_doubtful = True
        self._hold()
        if self._renewing is None:
            self._renewing = self._tasks.start(self._renew())

    def _hold(self) -> None:
        self._is_holding = True
        for runner in self._runners.values():
            runner.mailbox.put(AppendsHeld())

    async def _renew(self) -> None:
        while True:
            if self._is_doubtful:
                await self._pause_between_doubts()
                self._is_doubtful = False
            client_id = await self._take_client_id()
            self._hold()
            while not all(runner.is_settled for runner in self._runners.values()):
                self._changed.clear()
                await self._changed.wait()
            if not self._is_doubtful:
                break
        logger.info("client_id_renewed client_id=%d before=%d", client_id, self.client_id)
        self.client_id = client_id
        self._is_holding = False
        self._renewing = None
        self._sequence_numbers.clear()
        for runner in self._runners.values():
            runner.mailbox.put(ClientIdRenewed(client_id))
        self._open_streams()

    async def _pause_between_doubts(self) -> None:
        now = asyncio.get_running_loop().time
        pause = self._doubted_at + DOUBT_SECONDS_MIN - now()
        if pause > 0:
            await asyncio.sleep(pause)
        self._doubted_at = now()

    async def _take_client_id(self) -> ClientId:
        """Ask until there is an answer: meanwhile the remaining sequence numbers are used."""
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                return await self._source.allocate_client_id()
            except (
                UnavailableError,
                CoordinationError,
                ProtocolError,
                PermissionDeniedError,
            ) as error:
                logger.warning(
                    "client_id_wanted client_id=%d error=%s; a partition whose sequence numbers"
                    " are used up sends nothing until there is another client ID",
                    self.client_id,
                    error,
                )
            await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
            pause = min(2 * pause, RETRY_SECONDS_MAX)
