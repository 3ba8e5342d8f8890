"""Seeded bugs of discovery: what clients without a coordinator learn from servers, and keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.patches import Patch
from waltz.connections.cluster_discovery import ClusterDiscovery
from waltz.connections.discovery_shell import DiscoverySource
from waltz.server.clients.directory_shell import Directory
from waltz.server.clients.subscriptions import Subscriptions


def _believing_the_first_only(merge: Callable[..., None]) -> Callable[..., None]:
    def merged(self: Any, topology: Any) -> None:
        known = self._snapshot
        # Before the servers have come to terms there is nothing in it to believe.
        if known is None or len(known.partitions) < known.partition_count:
            merge(self, topology)

    return merged


def _without_subscribing(ask: Callable[..., Any]) -> Callable[..., Any]:
    async def asked(self: Any, connection: Any, *, subscribe: bool) -> Any:
        return await ask(self, connection, subscribe=False)

    return asked


def _keeping_what_was_encoded(change: Callable[..., None]) -> Callable[..., None]:
    def changed(self: Any, membership: Any) -> None:
        frames = dict(self._frames)
        change(self, membership)
        self._frames.update(frames)

    return changed


def _forgetting_who_is_full(step: Callable[..., Any]) -> Callable[..., Any]:
    def stepped(self: Any, events: Any, now: float) -> Any:
        effects = step(self, events, now)
        for connection_id in [each for each in self._behind if each in self._full]:
            del self._behind[connection_id]
        return effects

    return stepped


def _bug(
    name: str, caught: Scene, *patches: Patch, plans: tuple[str, ...] = ("moving_partitions",)
) -> Bug:
    return Bug(
        name=name,
        breaks="I12 convergence",
        patches=patches,
        workloads=("append", "bank", "lock_contention", "lone_client"),
        plans=plans,
        caught=caught,
    )


DISCOVERY_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a client keeps the first topology that it was told for ever",
        Scene(0, "append", "moving_partitions"),
        Patch(ClusterDiscovery, "_merge", _believing_the_first_only),
    ),
    _bug(
        "a client asks for the topology when it connects, and does not subscribe",
        Scene(0, "append", "moving_partitions"),
        Patch(DiscoverySource, "_ask_topology", _without_subscribing),
    ),
    _bug(
        "a server goes on telling the topology that it has encoded once",
        Scene(0, "append", "moving_partitions"),
        Patch(Directory, "change", _keeping_what_was_encoded),
    ),
    _bug(
        "a subscriber that has no room when the cluster changes is never told",
        Scene(18, "lock_contention", "broken_connections"),
        Patch(Subscriptions, "step", _forgetting_who_is_full),
        plans=("broken_connections", "meddling", "moving_partitions"),
    ),
    _bug(
        "a client that has lost its guide looks for nobody else",
        Scene(2000, "append", "mass_restart"),
        Patch(ClusterDiscovery, "_search_later", forgotten),
        plans=("mass_restart", "server_crash"),
    ),
)
