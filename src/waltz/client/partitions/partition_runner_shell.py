"""One partition at work: its machine, its messages, and the gate of its submits.

Decides nothing of the protocol: that is `ClientPartition`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, assert_never

from waltz.client.appends.gate import Gate
from waltz.client.appends.submission import Submission
from waltz.client.applying.bodies_ahead import Calls
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_metrics import ClientPartitionMetrics
from waltz.client.client_options import ClientOptions
from waltz.client.partitions.application_shell import Application
from waltz.client.partitions.client_partition import ClientPartition
from waltz.client.partitions.client_partition_events import (
    AheadSuspected,
    AppendRefused,
    AppendsSettled,
    ApplyTransactions,
    BulkApplied,
    ClientIdRunsOut,
    Effect,
    Event,
    FailSubmission,
    LoadHighWaterMark,
    MountChanged,
    MountDenied,
    ReleaseRoom,
    RetrySubmissions,
    SendMessages,
)
from waltz.client.partitions.outcome_questions import OutcomeKnown, OutcomeRefused
from waltz.client.partitions.waiting_calls_shell import WaitingCalls
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories, ahead
from waltz.connections.requests_shell import Requests
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientAheadError,
    LocalProtocolError,
    PartitionBlockedError,
    PermissionDeniedError,
)
from waltz.host import Host
from waltz.limits import CLIENT_MAILBOX_EVENTS_MAX
from waltz.machine_shell import Mailbox, run
from waltz.types import NOTHING, ClientId, PartitionId
from waltz.wire.client_protocol import AppendRequest, MountState
from waltz.wire.message import Message

logger = logging.getLogger(__name__)

T = TypeVar("T")

Send: TypeAlias = Callable[[int, Sequence[Message]], list[tuple[Message, LocalProtocolError]]]
"""Sends messages on a connection; returns those that cannot be sent, and why."""


class Call(Protocol):
    """Runs an application's callback on a worker."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """The doors of a client that its partitions use."""

    host: Host
    call: Call
    callbacks: WaltzClientCallbacks
    options: ClientOptions
    tasks: Tasks
    requests: Requests
    body_calls: Calls
    send: Send
    retry: Callable[[Sequence[Submission]], None]
    finish: Callable[[Sequence[Submission]], None]
    fail: Callable[[Submission, Exception], None]
    give_up: Callable[[PartitionId, Exception], None]
    end: Callable[[Exception], None]
    """Ends the client."""
    blocked: Callable[[PartitionId, PartitionBlockedError, float], None]
    """Called with how many seconds the partition has been blocked by now."""
    snapshot: Callable[[], ClusterSnapshot]
    histories: Callable[[], Histories]
    """Returns those of the cluster, as far as anybody has told them."""
    mounted: Callable[[PartitionId, bool], None]
    applying: Callable[[PartitionId], None]
    """Called when the partition's mark may be about to move, and when it is mounted."""
    see_to_client_id: Callable[[ClientIdRunsOut | AppendsSettled], None]


class PartitionRunner:
    """See the module."""

    def __init__(
        self,
        services: Services,
        client_id: ClientId,
        partition_id: PartitionId,
        gate: Gate,
        *,
        sequence_number: int = 0,
        is_added: bool = False,
    ) -> None:
        """`sequence_number`: the last that a request of this client to this partition has had;
        `is_added`: the partition was added while this client followed all there were."""
        self.partition_id = partition_id
        self.gate = gate
        self.told_mark = NOTHING
        """The last transaction of the log, as a server has said it when it was asked."""
        self.machine = ClientPartition(
            client_id,
            partition_id,
            long_wait_seconds=services.options.long_wait_seconds,
            sequence_number=sequence_number,
            with_data=services.callbacks.prefetch,
            ahead_seconds_max=services.options.ahead_seconds_max,
        )
        self.mailbox: Mailbox[Event] = Mailbox(services.host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._services = services
        self._is_added = is_added
        self._running: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.waiting = WaitingCalls(self.mailbox.put)
        self.application = Application(
            services,
            partition_id,
            self.waiting,
            answer=self.mailbox.put,
            note_stall=self._room.set,
            give_up=self._give_up,
            deny=self._note_denial,
        )

    def start(self) -> None:
        services = self._services
        self._running = services.tasks.start(
            run(self.machine, self.mailbox, services.host, self._perform)
        )

    def end(self) -> None:
        """Stop at once."""
        if self._running is not None:
            self._running.cancel()

    async def room(self) -> None:
        """Return once more of the feed may be read from the partition's connection."""
        while not self.has_ended:
            await self.mailbox.room()
            if self.machine.feed.has_room or self.application.is_stalled:
                return
            self._room.clear()
            await self._room.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the partition takes no more of what its connection brings."""
        return self.waiting.error is not None or self.machine.closed

    @property
    def denied(self) -> PermissionDeniedError | None:
        """Why the partition is denied to this client; None: it is granted, as far as is known."""
        return self.gate.denied

    @property
    def is_settled(self) -> bool:
        """Whether nothing is undecided that was sent under the present client ID, and nothing is
        sent under it any more."""
        return self.machine.closed or self.machine.is_settled

    def metrics(self) -> ClientPartitionMetrics:
        """Return the figures of this moment; any thread may ask."""
        machine, application, blocked = self.machine, self.application, self.application.blocked
        is_known, wall = machine.mark_known, self._services.host.clock.wall_milliseconds
        applied = application.high_water_mark
        return ClientPartitionMetrics(
            partition_id=self.partition_id,
            is_mounted=self.gate.is_mounted,
            is_denied=self.denied is not None,
            applied_mark=applied if is_known else None,
            known_mark=max(applied, machine.known_mark, self.told_mark) if is_known else None,
            applied=application.applied_count,
            pending=len(machine.own),
            rows_refused=machine.own.rows.rows_refused,
            parked=application.parked_count,
            blocked_seconds=None
            if blocked is None
            else max(0.0, (wall() - blocked.since_milliseconds) / 1000),
        )

    def check_history(self, histories: Histories) -> None:
        """Raises HistoryChangedError: what was applied here, or waits here to be applied, is not in
        the log that has these histories."""
        if self.machine.mark_known:
            self.application.check_history(histories, self.machine.feed.fed)

    def end_calls(self, error: Exception) -> None:
        """End all calls that wait with `error`, open ones and later ones: no answer will come."""
        self.waiting.end(error)
        self._room.set()

    def _perform(self, effect: Effect) -> None:
        services = self._services
        match effect:
            case SendMessages():
                for message, error in services.send(effect.connection_sequence, effect.messages):
                    assert isinstance(message, AppendRequest), f"{message}: {error}"
                    self.mailbox.put(AppendRefused(message.request_id, error))
            case ApplyTransactions():
                self._room.set()
                self.application.apply(effect)
            case BulkApplied(submission):
                if submission.claim_verdict():
                    services.finish([submission])
            case ReleaseRoom():
                self.gate.release(effect.count)
            case RetrySubmissions():
                services.retry(effect.submissions)
            case FailSubmission():
                services.fail(effect.submission, effect.error)
            case LoadHighWaterMark():
                # All that a partition holds that was added meanwhile came later than the client.
                self.application.load(from_end=not (self.machine.mark_known or self._is_added))
            case ClientIdRunsOut() | AppendsSettled():
                services.see_to_client_id(effect)
            case MountChanged() | AheadSuspected():
                self._note_mount(effect)
            case MountDenied(error):
                self._note_denial(error)
            case OutcomeKnown() | OutcomeRefused():
                self.waiting.tell_outcome(effect)
            case _:
                assert_never(effect)

    def _note_denial(self, error: PermissionDeniedError) -> None:
        """Let what waits for the partition wait no longer; it is asked for again later."""
        if self.denied is None:
            logger.warning("partition_denied partition=%d error=%s", self.partition_id, error)
        self.gate.deny(error)
        self.waiting.deny(error)

    def _note_mount(self, effect: MountChanged | AheadSuspected) -> None:
        """Tell of the mount; end the partition if its mark is beyond the log for good."""
        if isinstance(effect, AheadSuspected):
            logger.warning(
                "client_ahead partition=%d mark=%d: the server's log ends before it; asking again"
                " for %g s, in case it is a server that has lost the partition",
                self.partition_id, effect.high_water_mark,
                self._services.options.ahead_seconds_max,
            )  # fmt: skip
            return
        state = effect.state
        logger.info("mount_changed partition=%d state=%s", self.partition_id, state)
        if state is MountState.READY:
            if self.denied is not None:
                logger.info("partition_granted partition=%d", self.partition_id)
            self.waiting.grant()
        self.gate.set_mounted(state is MountState.READY)
        self._services.mounted(self.partition_id, state is MountState.READY)
        self._services.applying(self.partition_id)
        if state is MountState.CLIENT_AHEAD:
            key, history = self._services.snapshot().cluster_key, self.application.history
            mark = self.machine.feed.high_water_mark
            self._give_up(ClientAheadError(ahead(key, self.partition_id, history, mark)))

    def _give_up(self, error: Exception) -> None:
        """Nothing more is applied or written here."""
        logger.error("partition_given_up partition=%d error=%s", self.partition_id, error)
        self._services.give_up(self.partition_id, error)
        self.end_calls(error)
