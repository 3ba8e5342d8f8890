"""Finds a cluster through its servers, without a coordinator, and finds it again after a loss.

Owns the cluster as its servers report it, which cluster that is, and when to search for a server:
at the start, when the last connection is lost, and now and then a server that the client has no
connection to. Must not know sockets. Reports of servers are merged per partition by the higher
generation, so that a server that is cut off from the others cannot bring back an old view (IEP-90,
"Maintaining connections"; hazard of a stale server). Always: once begun and until closed, there is
a connection, a search, or a known time for the next search; and everything that was ever taken came
from one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never
from uuid import UUID

from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.connections.initial_connection import (
    ATTEMPT_SECONDS_MAX,
    Began,
    Connected,
    InitialConnection,
    NodeAnswered,
    NodeFailed,
    NotConnected,
    TryNode,
)
from waltz.connections.initial_connection import Event as SearchEvent
from waltz.limits import RECONNECT_BROKEN_SECONDS_MAX
from waltz.types import Address, Generation, PartitionId
from waltz.wire.discovery_protocol import Topology


@dataclass(frozen=True, slots=True)
class OpeningBegun:
    """The client opens; `draw`, from 0 to 1, sets it apart from other clients."""

    draw: float


@dataclass(frozen=True, slots=True)
class GuideFound:
    """The attempt found a server, which reports `topology` and keeps reporting until it is
    released."""

    topology: Topology


@dataclass(frozen=True, slots=True)
class GuideNotFound:
    """The attempt has failed; see `NodeFailed`."""

    reason: str
    in_handshake: bool
    jitter: float


@dataclass(frozen=True, slots=True)
class GuideLost:
    """The connection to the guide has ended; `jitter` is from 0 to 1."""

    jitter: float


@dataclass(frozen=True, slots=True)
class Told:
    """A server has reported `topology` on any connection."""

    topology: Topology


@dataclass(frozen=True, slots=True)
class ConnectionUp:
    """One of the client's own connections is up."""

    address: Address


@dataclass(frozen=True, slots=True)
class ConnectionDown:
    """One of the client's own connections has ended; `jitter` is from 0 to 1."""

    address: Address
    jitter: float


@dataclass(frozen=True, slots=True)
class DiscoveryStopped:
    """The client closes."""


Event: TypeAlias = (
    OpeningBegun
    | GuideFound
    | GuideNotFound
    | GuideLost
    | Told
    | ConnectionUp
    | ConnectionDown
    | DiscoveryStopped
)


@dataclass(frozen=True, slots=True)
class ShowView:
    """Show the client this view of its cluster."""

    snapshot: ClusterSnapshot


@dataclass(frozen=True, slots=True)
class ReleaseGuide:
    """Close the connection to the guide: other servers report now."""


@dataclass(frozen=True, slots=True)
class ClusterIsAnother:
    """Another cluster answers, and nothing of it was taken. Returned once."""

    expected: UUID
    found: UUID


Effect: TypeAlias = TryNode | ShowView | ReleaseGuide | NotConnected | ClusterIsAnother


class ClusterDiscovery:
    """See the module."""

    def __init__(
        self,
        given: Sequence[Address],
        *,
        connection_seconds_max: float,
        reconnect_seconds_max: float,
        refresh_seconds: float,
    ) -> None:
        """`given`: the servers that the user knows, at least one. They stay the last resort."""
        self.closed = False
        self._given = tuple(given)
        self._connection_seconds_max = connection_seconds_max
        self._reconnect_seconds_max = reconnect_seconds_max
        self._refresh_seconds = refresh_seconds
        self._rotation = 0
        self._search: InitialConnection | None = None
        self._has_begun = False
        self._has_guide = False
        self._is_refreshing = False
        """Whether an attempt is under way that nothing depends on."""
        self._search_at: float | None = None
        self._refresh_at: float | None = None
        self._losses = 0
        """Consecutive losses of all connections since a connection was last up."""
        self._connected: dict[Address, int] = {}
        self._snapshot: ClusterSnapshot | None = None
        self._membership_version = -1
        self._servers: tuple[Address, ...] = ()
        self._effects: list[Effect] = []

    @property
    def deadline(self) -> float | None:
        if self._search is not None:
            return self._search.deadline
        if self._is_busy:
            return None
        return self._refresh_at if self._connected else self._search_at

    @property
    def snapshot(self) -> ClusterSnapshot:
        """Return the view of the cluster; there is one once a guide was found."""
        assert self._snapshot is not None
        return self._snapshot

    def candidates(self) -> tuple[Address, ...]:
        """Return the servers to try in order: the known ones, starting with another one at each
        call, then the given ones."""
        self._rotation += 1
        known = self._servers
        start = self._rotation % len(known) if known else 0
        return tuple(dict.fromkeys((*known[start:], *known[:start], *self._given)))

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            if not self.closed:
                self._take(event, now)
        if not self.closed:
            self._look(now)
        return self._effects

    def check_invariants(self) -> None:
        assert all(count > 0 for count in self._connected.values())
        if self._has_begun and not self.closed:
            assert self._connected or self._is_busy or self._search_at is not None
        assert not (self._search is not None and self._is_refreshing)

    @property
    def _is_busy(self) -> bool:
        return self._search is not None or self._has_guide or self._is_refreshing

    def _take(self, event: Event, now: float) -> None:
        match event:
            case OpeningBegun():
                self._has_begun = True
                self._rotation = int(event.draw * 2**16)
                if self._refresh_seconds:
                    self._refresh_at = now + self._refresh_seconds * (0.5 + 0.5 * event.draw)
                self._begin_search(self._given, self._connection_seconds_max, now)
            case GuideFound():
                self._has_guide, self._is_refreshing = True, False
                self._search_on(NodeAnswered(), now)
                self._merge(event.topology)
            case GuideNotFound():
                self._is_refreshing = False
                self._search_on(NodeFailed(event.reason, event.in_handshake, event.jitter), now)
                self._search_later(now, event.jitter)
            case GuideLost():
                self._has_guide = False
                self._search_later(now, event.jitter)
            case Told():
                self._merge(event.topology)
            case ConnectionUp():
                self._connected[event.address] = self._connected.get(event.address, 0) + 1
                self._losses = 0
            case ConnectionDown():
                self._connected[event.address] -= 1
                if not self._connected[event.address]:
                    del self._connected[event.address]
                self._search_later(now, event.jitter)
            case DiscoveryStopped():
                self.closed = True
            case _:
                assert_never(event)

    def _look(self, now: float) -> None:
        if self._connected:
            self._search_at = None
            if self._has_guide:
                self._has_guide = False
                self._effects.append(ReleaseGuide())
        if self._search is not None:
            self._search_on(None, now)
        if self._is_busy:
            return
        if self._search_at is not None and self._search_at <= now:
            self._search_at = None
            self._begin_search(self.candidates(), None, now)
        elif self._connected and self._refresh_at is not None and self._refresh_at <= now:
            self._refresh_at = now + self._refresh_seconds
            others = [each for each in self.candidates() if each not in self._connected]
            if others:
                self._is_refreshing = True
                self._effects.append(TryNode(others[0], ATTEMPT_SECONDS_MAX))

    def _search_later(self, now: float, jitter: float) -> None:
        """Search soon if no connection is left; the client's own connections may come back
        first."""
        if self._connected or self._is_busy or self._search_at is not None:
            return
        longest = min(
            max(self._reconnect_seconds_max, RECONNECT_BROKEN_SECONDS_MAX),
            RECONNECT_BROKEN_SECONDS_MAX * 2 ** min(self._losses, 20),
        )
        self._losses += 1
        self._search_at = now + longest * (0.5 + 0.5 * jitter)

    def _begin_search(
        self, addresses: Sequence[Address], seconds_max: float | None, now: float
    ) -> None:
        self._search = InitialConnection(
            addresses, seconds_max=seconds_max, pause_seconds_max=self._reconnect_seconds_max
        )
        self._search_on(Began(), now)

    def _search_on(self, event: SearchEvent | None, now: float) -> None:
        if self._search is None:
            return
        for effect in self._search.step([] if event is None else [event], now):
            if isinstance(effect, Connected):
                continue
            self._effects.append(effect)
            if isinstance(effect, NotConnected):
                self.closed = True
        if self._search.closed:
            self._search = None

    # Reports of servers

    def _merge(self, topology: Topology) -> None:
        known = self._snapshot
        if known is not None and known.cluster_key != topology.cluster_key:
            if self._connected:
                return  # a wrong address among the right ones; the client's cluster still answers
            self.closed = True
            self._effects.append(ClusterIsAnother(known.cluster_key, topology.cluster_key))
            return
        if known is None or topology.membership_version >= self._membership_version:
            self._membership_version = topology.membership_version
            self._servers = tuple(
                entry.addresses[0] for entry in topology.servers if entry.addresses
            )
        partitions = _merged({} if known is None else known.partitions, topology)
        count = topology.partition_count
        snapshot = ClusterSnapshot(
            topology.cluster_name,
            topology.cluster_key,
            count if known is None else max(count, known.partition_count),
            partitions,
        )
        if snapshot != known:
            self._snapshot = snapshot
            self._effects.append(ShowView(snapshot))


def _merged(
    known: Mapping[PartitionId, tuple[Address, Generation]], topology: Topology
) -> dict[PartitionId, tuple[Address, Generation]]:
    """Return the newest assignment of each partition; partitions of servers without an address are
    left out."""
    addresses = {
        entry.server_id: entry.addresses[0] for entry in topology.servers if entry.addresses
    }
    merged = dict(known)
    for entry in topology.partitions:
        address = addresses.get(entry.server_id)
        found = known.get(entry.partition_id)
        if address is not None and (found is None or found[1] < entry.generation):
            merged[entry.partition_id] = address, entry.generation
    return dict(sorted(merged.items()))
