"""A webhook as the destination of a bridge, with the progress in a file.

Owns the order of a delivery over HTTP: choose, sign, post. What an answer means is decided by
`webhook_shell.py` and `delivery.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from waltz.bridge.bridge_progress import REMEDY, BridgeProgress, PartitionProgress, ProgressFile
from waltz.bridge.delivery import Accepted, Refused
from waltz.bridge.destination_shell import Available, Lane, LogEnds
from waltz.bridge.progress_keeper_shell import ProgressKeeper
from waltz.bridge.webhook_body import Content, body, headers
from waltz.bridge.webhook_choice import Choice, Wanted
from waltz.bridge.webhook_shell import Webhook, WebhookConnection
from waltz.host import Host
from waltz.types import PartitionId


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The receiver, the secrets of the signatures, and the choice of what is posted."""

    webhook: Webhook
    secrets: tuple[bytes, ...]
    choice: Choice


class WebhookDestination:
    """Implements `Destination`."""

    remedy = REMEDY

    def __init__(self, host: Host, file: ProgressFile, options: WebhookOptions) -> None:
        self._host = host
        self._file = file
        self._options = options
        self._unlock: Callable[[], None] | None = None
        self._keeper: ProgressKeeper | None = None

    @property
    def receiver(self) -> str:
        return self._options.webhook.origin

    @property
    def count_max(self) -> int:
        return self._options.choice.count_max

    async def start(self) -> None:
        """Lock the progress. Raises DirectoryInUseError: another process has it;
        ConfigurationError: it cannot be locked."""
        self._unlock = self._file.lock()

    async def begin(self, ends: LogEnds, *, with_first: bool) -> Mapping[PartitionId, Lane]:
        """Return a lane per partition. The file names all partitions, durably: a start with the
        latest transaction is one place, however often the bridge is started. Raises
        HistoryChangedError: the file is of another cluster; CorruptionError; OSError."""
        found = await self._host.workers.run_blocking(self._file.load)
        progress = found or BridgeProgress(ends.cluster_key, {})
        progress.check_cluster(ends.cluster_key, self._file.path)
        new = [each for each in ends.marks if each not in progress.partitions]
        if new:
            progress = progress.reaching(
                {
                    each: PartitionProgress(0 if with_first else ends.marks[each] + 1, ends.history)
                    for each in new
                }
            )
            await self._host.workers.run_blocking(lambda: self._file.save(progress))
        keeper = self._keeper = ProgressKeeper(self._host, self._file, progress)
        return {
            each: WebhookLane(self._host, keeper, self._options, ends.cluster_key, each)
            for each in ends.marks
        }

    async def flush(self) -> None:
        if self._keeper is not None:
            await self._keeper.flush()

    def end(self) -> None:
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()


class WebhookLane:
    """One partition: its place in the file, its connection. Implements `Lane`."""

    def __init__(
        self,
        host: Host,
        keeper: ProgressKeeper,
        options: WebhookOptions,
        cluster_key: UUID,
        partition_id: PartitionId,
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._options = options
        self._cluster_key = cluster_key
        self._partition_id = partition_id
        self._connection = WebhookConnection(options.webhook)

    @property
    def place(self) -> PartitionProgress:
        return self._keeper.of(self._partition_id)

    async def deliver(
        self, available: Available, count_max: int, sending: Callable[[int], None]
    ) -> Accepted | Refused:
        choice, number = self._options.choice, self._partition_id
        wanted: Wanted = await self._host.workers.run_blocking(
            lambda: choice.wanted(number, available.columns, available.first, count_max)
        )
        if not wanted.items:
            return Accepted(wanted.last, 0)
        sending(wanted.last)
        return await self._post(wanted, available.history)

    async def _post(self, wanted: Wanted, history: UUID) -> Accepted | Refused:
        options = self._options
        content = Content(
            self._cluster_key, history, self._partition_id, wanted.first_posted, wanted.last_posted
        )
        posted = body(wanted.items)
        wall_seconds = self._host.clock.wall_milliseconds() // 1000
        signed = await self._host.workers.run_blocking(
            lambda: headers(content, posted, options.secrets, wall_seconds)
        )
        answer = await self._connection.post(signed, posted)
        if answer.is_acceptance:
            return Accepted(wanted.last, len(wanted.items))
        return Refused(
            answer.text(),
            self._host.random.uniform(0.0, 1.0),
            answer.is_for_content,
            answer.retry_after_seconds(self._host.clock.wall_milliseconds() / 1000),
        )

    async def keep(self, to: PartitionProgress, *, is_due: bool) -> None:
        await self._keeper.move(self._partition_id, to, is_due=is_due)

    async def close(self) -> None:
        self._connection.close()
