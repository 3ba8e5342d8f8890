"""The mount of one partition: the stream it is asked for on, its phase, and when it is repeated.

Knows no appends and not the feed: what follows from an answer is done by `ClientPartition`.
Source: Client-Server Communication, "Mount"; rows CI-10 to CI-12.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from waltz.client.partitions.client_partition_events import (
    AheadSuspected,
    MountChanged,
    MountDenied,
)
from waltz.errors import PermissionDeniedError
from waltz.limits import (
    DENIED_SECONDS,
    MOUNT_SECONDS_MAX,
    NOT_READY_SECONDS_MAX,
    NOT_READY_SECONDS_MIN,
)
from waltz.types import RequestId, TransactionId
from waltz.wire.client_protocol import MountResponse, MountState


class PartitionPhase(Enum):
    DETACHED = "no stream"
    LOADING = "stream; the application's mark is asked for"
    MOUNTING = "mount request sent"
    NOT_READY = "the server was not ready; asked again soon"
    MOUNTED = "mounted"
    DENIED = "the server's policy denies the partition; asked again later"
    AHEAD = "the application has applied more than the log holds"
    CLOSED = "closed"


class Mounting:
    """See the module. `ahead_seconds_max`: how long a server that says AHEAD is asked again before
    it is believed."""

    def __init__(self, ahead_seconds_max: float) -> None:
        self.phase = PartitionPhase.DETACHED
        self.stream: int | None = None
        """The sequence number of the connection; None: there is none."""
        self.request_id: RequestId | None = None
        """The mount request on this stream; messages that name another one are late."""
        self.at: float | None = None
        """The time at which a mount request is sent again."""
        self._not_ready_seconds = NOT_READY_SECONDS_MIN
        self._ahead_seconds_max = ahead_seconds_max
        self._ahead_since: float | None = None
        self.denied: PermissionDeniedError | None = None
        """Why the last mount request with an answer was denied; None: it was not."""

    @property
    def is_over(self) -> bool:
        """Whether the partition is mounted no more, whatever comes."""
        return self.phase in (PartitionPhase.AHEAD, PartitionPhase.CLOSED)

    def begin(self, request_id: RequestId, now: float) -> None:
        """Take note of the mount request that is sent now."""
        self.phase = PartitionPhase.MOUNTING
        self.request_id = request_id
        self.wait(now)

    def wait(self, now: float) -> None:
        """Give the server the whole time for its answer. Some mounts are never answered (hazards
        H2, H3, H5), so they are repeated."""
        self.at = now + MOUNT_SECONDS_MAX

    def answer(
        self, response: MountResponse, mark: TransactionId, now: float
    ) -> list[MountChanged | AheadSuspected]:
        """Take the server's answer about a client that has applied up to `mark`."""
        if response.request_id != self.request_id or self.phase is not PartitionPhase.MOUNTING:
            return []
        match response.state:
            case MountState.READY:
                self.phase = PartitionPhase.MOUNTED
                self.denied = None
                self.at = self._ahead_since = None
                return [MountChanged(MountState.READY)]
            case MountState.NOT_READY:
                self._ahead_since = None
                self._repeat_later(now)
                return []
            case MountState.CLIENT_AHEAD:
                # It may be a server that has lost the partition and does not know yet.
                effects: list[MountChanged | AheadSuspected] = []
                if self._ahead_since is None:
                    self._ahead_since = now
                    effects.append(AheadSuspected(mark))
                if now - self._ahead_since < self._ahead_seconds_max:
                    self._repeat_later(now)
                    return effects
                self.phase = PartitionPhase.AHEAD
                self.at = None
                return [*effects, MountChanged(MountState.CLIENT_AHEAD)]
            case _:
                assert_never(response.state)

    def _repeat_later(self, now: float) -> None:
        self.phase = PartitionPhase.NOT_READY
        self.at = now + self._not_ready_seconds
        self._not_ready_seconds = min(2 * self._not_ready_seconds, NOT_READY_SECONDS_MAX)

    def deny(self, error: PermissionDeniedError, now: float) -> list[MountChanged | MountDenied]:
        """The server does not mount the partition for this client, or no longer."""
        if self.request_id is None or self.is_over:
            return []  # heard already, or said before there was a mount
        was_mounted = self.phase is PartitionPhase.MOUNTED
        self.phase, self.denied, self.request_id = PartitionPhase.DENIED, error, None
        self.at = now + DENIED_SECONDS
        self._ahead_since = None
        return [*([MountChanged(None)] if was_mounted else ()), MountDenied(error)]

    def lose_stream(self) -> list[MountChanged]:
        effects = [MountChanged(None)] if self.phase is PartitionPhase.MOUNTED else []
        self.stream = self.request_id = self.at = None
        self._not_ready_seconds = NOT_READY_SECONDS_MIN
        if not self.is_over:
            self.phase = PartitionPhase.DETACHED
        return effects

    def close(self) -> list[MountChanged]:
        """As `lose_stream`, for good."""
        effects = self.lose_stream()
        self.phase = PartitionPhase.CLOSED
        return effects

    def check_invariants(self) -> None:
        if self.phase is not PartitionPhase.AHEAD:
            is_asked = self.phase in (
                PartitionPhase.MOUNTING,
                PartitionPhase.NOT_READY,
                PartitionPhase.MOUNTED,
            )
            assert is_asked == (self.request_id is not None)
