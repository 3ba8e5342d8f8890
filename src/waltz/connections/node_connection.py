"""How a connection to one node comes about: resolve its name, then try what was found.

Owns the order of attempts and what is remembered of those that failed. Must not know resolvers,
sockets or what is said afterwards: a node that can be connected to has been found, and when its
handshake fails no other address of the same name is tried, for they count as the same node. Always:
exactly one thing is under way until the machine is closed. Randomness comes with the events.
Source: IEP-90, "Node connection establishment".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from waltz.types import Address


@dataclass(frozen=True, slots=True)
class Begun:
    """Somebody wants the connection."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The name leads to these now, at least one; `draws` has a number from 0 to 1 for each."""

    addresses: Sequence[Address]
    draws: Sequence[float]


@dataclass(frozen=True, slots=True)
class NotResolved:
    reason: str


@dataclass(frozen=True, slots=True)
class TransportOpened:
    """TCP, and TLS if there is to be any."""


@dataclass(frozen=True, slots=True)
class TransportFailed:
    reason: str


Event: TypeAlias = Begun | Resolved | NotResolved | TransportOpened | TransportFailed


@dataclass(frozen=True, slots=True)
class Resolve:
    """Look the name up, again every time."""

    address: Address


@dataclass(frozen=True, slots=True)
class OpenTransport:
    """Connect to `address`, which the name was resolved to."""

    address: Address


@dataclass(frozen=True, slots=True)
class NodeFound:
    """The transport is open: it is time for the handshake."""


@dataclass(frozen=True, slots=True)
class NodeNotFound:
    """There is no way to this node now; `reason` says it of each of its addresses."""

    reason: str


Effect: TypeAlias = Resolve | OpenTransport | NodeFound | NodeNotFound


class NodeConnection:
    """See the module. Made for one address, used once."""

    def __init__(self, address: Address) -> None:
        self.closed = False
        self._address = address
        self._waiting: deque[Address] = deque()
        self._reasons: list[str] = []

    @property
    def deadline(self) -> float | None:
        """None: every attempt has a bound of its own."""
        return None

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        return [self._take(event) for event in events]

    def check_invariants(self) -> None:
        assert len({*self._waiting}) == len(self._waiting)

    def _take(self, event: Event) -> Effect:
        assert not self.closed
        match event:
            case Begun():
                return Resolve(self._address)
            case Resolved():
                drawn = sorted(zip(event.draws, event.addresses, strict=True))
                self._waiting.extend(address for _, address in drawn)
                return self._go_on()
            case TransportFailed():
                self._reasons.append(event.reason)
                return self._go_on()
            case NotResolved():
                self._reasons.append(event.reason)
                return self._go_on()
            case TransportOpened():
                self.closed = True
                return NodeFound()
            case _:
                assert_never(event)

    def _go_on(self) -> Effect:
        if self._waiting:
            return OpenTransport(self._waiting.popleft())
        self.closed = True
        return NodeNotFound("; ".join(dict.fromkeys(self._reasons)))
