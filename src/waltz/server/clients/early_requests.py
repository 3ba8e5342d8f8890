"""Requests of clients that arrived while the store had no session.

Owns the mounts, and the questions for a mark, that wait for one, and until when. A client that is
told NOT_READY asks again after a pause, while nobody is served.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from waltz.server.clients.client_connection import ClientPeer
from waltz.wire.client_protocol import HighWaterMarkRequest, MountRequest

EARLY_MOUNT_SECONDS_MAX: Final = 1.0
"""A mount is answered with NOT_READY if there is no store session after this time; opening one
takes a fraction of it."""


class EarlyMount(NamedTuple):
    """A mount, and until when it waits."""

    peer: ClientPeer
    request: MountRequest
    until: float


class EarlyRequests:
    """The requests of one partition that wait for a store session: the last mount of each
    connection, and all questions."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        """The time at which the next mount has waited long enough; None if none waits."""
        self._mounts: dict[int, EarlyMount] = {}
        self._questions: list[tuple[int, HighWaterMarkRequest]] = []

    def add_mount(self, peer: ClientPeer, request: MountRequest, now: float) -> bool:
        """Let a mount wait; return whether it replaces one of the same connection."""
        replaces = peer.connection_id in self._mounts
        until = now + EARLY_MOUNT_SECONDS_MAX
        self._mounts[peer.connection_id] = EarlyMount(peer, request, until)
        self._look_at_times()
        return replaces

    def add_question(self, connection_id: int, request: HighWaterMarkRequest) -> None:
        self._questions.append((connection_id, request))

    def forget(self, connection_id: int) -> int:
        """The connection is gone; return the number of requests that are forgotten with it."""
        count = len(self._questions)
        self._questions = [each for each in self._questions if each[0] != connection_id]
        has_mount = self._mounts.pop(connection_id, None) is not None
        self._look_at_times()
        return count - len(self._questions) + has_mount

    def take_overdue(self, now: float) -> list[EarlyMount]:
        """Take out the mounts that have waited long enough."""
        overdue = [each for each in self._mounts.values() if each.until <= now]
        for each in overdue:
            del self._mounts[each.peer.connection_id]
        self._look_at_times()
        return overdue

    def take_mounts(self) -> list[EarlyMount]:
        """Take out all mounts: the store has a session."""
        mounts, self._mounts = self._mounts, {}
        self.deadline = None
        return [*mounts.values()]

    def take_questions(self) -> list[tuple[int, HighWaterMarkRequest]]:
        """Take out all questions: the mark is known."""
        questions, self._questions = self._questions, []
        return questions

    def check_invariants(self, *, is_open: bool, knows_mark: bool) -> None:
        assert not self._questions or not knows_mark
        assert not self._mounts or not is_open
        assert (self.deadline is None) == (not self._mounts)
        assert all(each.until >= (self.deadline or 0.0) for each in self._mounts.values())

    def _look_at_times(self) -> None:
        self.deadline = min((each.until for each in self._mounts.values()), default=None)
