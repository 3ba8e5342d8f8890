"""Makes the first connection to a cluster: tries one address after the other until one works.

Owns the order and the time of attempts, the time-out, and the reasons of failed attempts. Must not
know what a connection is. Always: at most one attempt is under way; if none is, the next attempt is
due at a known time. The same procedure brings back a client that has lost its last connection: then
it has no time-out, and a failed handshake is only one more reason, since nobody would start the
procedure again. Jitter comes with the events. Source: IEP-90, "Initial connection".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from waltz.limits import (
    CONNECT_SECONDS_MAX,
    HANDSHAKE_SECONDS_MAX,
    RECONNECT_BROKEN_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
)
from waltz.types import Address

NODE_CONNECTION_SECONDS_MIN: Final = 0.5
"""The least share of that time that each address gets, however many there are."""


@dataclass(frozen=True, slots=True)
class Began:
    """Start with the first address."""


@dataclass(frozen=True, slots=True)
class NodeAnswered:
    """The attempt has made a connection, handshake included."""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The attempt has failed; `jitter` is from 0 to 1.

    `in_handshake`: a peer answered, and it is not a server that this client can talk to.
    """

    reason: str
    in_handshake: bool
    jitter: float


Event: TypeAlias = Began | NodeAnswered | NodeFailed


@dataclass(frozen=True, slots=True)
class TryNode:
    """Establish a connection with the node at this address, within `seconds_max`."""

    address: Address
    seconds_max: float


@dataclass(frozen=True, slots=True)
class Connected:
    """The procedure has succeeded."""


@dataclass(frozen=True, slots=True)
class NotConnected:
    """The procedure has failed; give up an attempt that is still under way.

    `in_handshake`: a failed handshake ended it, and not the clock.
    """

    reason: str
    in_handshake: bool


Effect: TypeAlias = TryNode | Connected | NotConnected

ATTEMPT_SECONDS_MAX = CONNECT_SECONDS_MAX + HANDSHAKE_SECONDS_MAX


class InitialConnection:
    """See the module. Without `seconds_max` it never ends and survives failed handshakes."""

    def __init__(
        self, addresses: Sequence[Address], *, seconds_max: float | None, pause_seconds_max: float
    ) -> None:
        """`addresses`, at least one, are tried in this order, again and again, with a pause after
        the last address; the first pause is short."""
        assert addresses
        self.closed = False
        self._addresses = tuple(addresses)
        self._seconds_max = seconds_max
        self._pause_seconds_max = pause_seconds_max
        self._waiting: deque[Address] = deque()
        self._reasons: dict[Address, str] = {}
        self._trying: Address | None = None
        self._due_at: float | None = None
        self._give_up_at: float | None = None
        self._passes = 0

    @property
    def deadline(self) -> float | None:
        times = (self._due_at, self._give_up_at)
        return None if self.closed else min((t for t in times if t is not None), default=None)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for event in events:
            if self.closed:
                break
            match event:
                case Began():
                    if self._seconds_max is not None:
                        self._give_up_at = now + self._seconds_max
                    self._due_at = now
                case NodeAnswered():
                    self._trying = None
                    self.closed = True
                    effects.append(Connected())
                case NodeFailed():
                    effects += self._fail(event, now)
                case _:
                    assert_never(event)
        if not self.closed:
            effects += self._look(now)
        return effects

    def check_invariants(self) -> None:
        assert self.closed or (self._trying is None) == (self._due_at is not None)

    def _fail(self, event: NodeFailed, now: float) -> Sequence[Effect]:
        if self._trying is None:
            return []
        failed, self._trying = self._trying, None
        self._reasons[failed] = event.reason
        if event.in_handshake and self._seconds_max is not None:
            self.closed = True
            return [NotConnected(f"{failed}: {event.reason}", in_handshake=True)]
        self._due_at = now
        if not self._waiting:
            # Other clients have lost the same servers: spread their first attempts over a longer
            # pause.
            is_back = self._seconds_max is None
            shortest = RECONNECT_BROKEN_SECONDS_MAX if is_back else RECONNECT_SECONDS_MIN
            pause = min(self._pause_seconds_max, shortest * 2 ** min(self._passes, 20))
            self._passes += 1
            self._due_at = now + pause * (0.5 + 0.5 * event.jitter)
        return []

    def _look(self, now: float) -> Sequence[Effect]:
        if self._give_up_at is not None and self._give_up_at <= now:
            self.closed = True
            if self._trying is not None:
                self._reasons.setdefault(self._trying, "no answer")
            alike: dict[str, list[Address]] = {}
            for address in self._addresses:
                alike.setdefault(self._reasons.get(address, "not tried"), []).append(address)
            reasons = "; ".join(
                f"{', '.join(map(str, addresses))}: {reason}" for reason, addresses in alike.items()
            )
            return [
                NotConnected(f"no server in {self._seconds_max:g} s: {reasons}", in_handshake=False)
            ]
        if self._due_at is None or self._due_at > now:
            return []
        self._due_at = None
        if not self._waiting:
            self._waiting.extend(self._addresses)
        self._trying = self._waiting.popleft()
        return [TryNode(self._trying, self._share(now))]

    def _share(self, now: float) -> float:
        """Return the seconds for this attempt: one address must not use up the time of the
        others."""
        if self._give_up_at is None:
            return ATTEMPT_SECONDS_MAX
        left = self._give_up_at - now
        share = max(NODE_CONNECTION_SECONDS_MIN, left / (1 + len(self._waiting)))
        return min(ATTEMPT_SECONDS_MAX, share, left)
