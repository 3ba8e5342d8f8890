"""Seeded bugs of adding partitions: who is asked, in which order, and who does not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.engine_shell import ClientEngine
from waltz.cluster.cluster_shell import ServerMembership
from waltz.operators import cluster_growth_shell as operating


def _without_taking(_: Callable[..., Any]) -> Callable[..., Any]:
    async def placed(host: Any, plan: Any, *, root: str, tell: Any) -> None:
        """Partitions are served before any storage node has room for them."""

    return placed


def _of_the_start_only(change: Callable[..., None]) -> Callable[..., None]:
    def changed(self: Any, snapshot: Any) -> None:
        first = getattr(self, "snapshot", None)
        if first is not None:
            count = min(first.partition_count, snapshot.partition_count)
            snapshot = type(snapshot)(
                snapshot.name, snapshot.cluster_key, count, snapshot.partitions
            )
        change(self, snapshot)

    return changed


def _with_the_number_of_the_start(register: Callable[..., Any]) -> Callable[..., Any]:
    async def registered(self: Any) -> None:
        count = self.partition_count
        await register(self)
        self.partition_count = count or self.partition_count

    return registered


def _bug(name: str, caught: Scene, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="I12 convergence",
        patches=patches,
        workloads=("append", "bank", "lock_contention", "slow_consumer"),
        plans=("growing_cluster",),
        caught=caught,
    )


GROWTH_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "partitions are added before storage nodes have room for them",
        Scene(0, "append", "growing_cluster"),
        Patch(operating, "_place", _without_taking),
    ),
    _bug(
        "a client keeps the number of partitions that it started with",
        Scene(0, "append", "growing_cluster"),
        Patch(ClientEngine, "_change_view", _of_the_start_only),
    ),
    _bug(
        "a server that registers again does not look how many partitions there are",
        Scene(11, "slow_consumer", "growing_cluster"),
        Patch(ServerMembership, "_register", _with_the_number_of_the_start),
    ),
)
