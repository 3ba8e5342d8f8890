"""Requests that are answered once all appends that arrived before them are decided.

Owns their order. Knows neither what they ask nor what the answer is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from waltz.server.clients.client_connection import ClientPeer
from waltz.wire.batch_protocol import OutcomeRequest
from waltz.wire.client_protocol import FlushRequest, MountRequest


class Barrier(NamedTuple):
    """A request that is answered once all appends up to `arrival` are decided."""

    arrival: int
    peer: ClientPeer
    request: MountRequest | FlushRequest | OutcomeRequest
    is_final: bool
    """Whether an append that the log does not have at this barrier never will be in the log."""


class Barriers:
    """Those of one partition.

    `behind` wait for appends that have not gone to the store; `ahead` for the ticket beside them.
    """

    def __init__(self) -> None:
        self.behind: deque[Barrier] = deque()
        self.ahead: deque[tuple[int, Barrier]] = deque()

    def __len__(self) -> int:
        return len(self.behind) + len(self.ahead)

    def __iter__(self) -> Iterator[Barrier]:
        yield from (barrier for _, barrier in self.ahead)
        yield from self.behind

    def add(self, barrier: Barrier) -> None:
        self.behind.append(barrier)

    def take_passed(self, oldest_waiting: int, issued: int, decided: int) -> Iterator[Barrier]:
        """Yield those before which nothing is undecided any more.

        oldest_waiting   arrival of the oldest append that has not gone to the store.
        issued, decided  the newest ticket, and the newest one whose outcome is known.
        """
        while self.behind and self.behind[0].arrival < oldest_waiting:
            # All earlier appends have gone to the store: the newest ticket decides.
            self.ahead.append((issued, self.behind.popleft()))
        while self.ahead and self.ahead[0][0] <= decided:
            yield self.ahead.popleft()[1]

    def check_invariants(self, decided: int) -> None:
        assert all(ticket > decided for ticket, _ in self.ahead)
