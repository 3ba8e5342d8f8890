"""Seeded bugs of those who follow the coordinator: it was rebuilt or put back, and they do not
notice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.patches import Patch
from waltz.cluster import cluster_shell
from waltz.host import Host, Node
from waltz.sim.simulated_coordinator import CoordinatorSession, SimulatedCoordinator
from waltz.store import partition_coordination_shell


def _by_version_alone(follow: Callable[..., Any]) -> Callable[..., Any]:
    async def following(host: Host, path: str, look: Callable[[], Awaitable[Node]]) -> None:
        async def looking() -> Node:
            """A node without the session that has read it."""
            return replace(await look(), session=None)

        await follow(host, path, looking)

    return following


def _whatever_session(differs: Callable[..., bool]) -> Callable[..., bool]:
    def differing(self: Any, path: str, seen: Node | None) -> bool:
        return differs(self, path, None if seen is None else replace(seen, session=None))

    return differing


def _believes_the_numbers(_: Callable[..., bool]) -> Callable[..., bool]:
    def shows_set_back(*_: object) -> bool:
        """Whatever the sessions say, IDs and generations are taken for the newest."""
        return False

    return shows_set_back


def _bug(name: str, caught: Scene, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="I12 convergence",
        patches=patches,
        workloads=("append", "bank", "lock_contention"),
        plans=(caught.plan,),
        caught=caught,
    )


COORDINATOR_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a node is told apart by its version alone",
        Scene(0, "append", "rebuilt_coordinator"),
        Patch(cluster_shell, "_follow", _by_version_alone),
    ),
    # The next two are planted in what stands for the shells of `system`, whose promises it keeps.
    _bug(
        "a wait for a change outlives the session that has read the node",
        Scene(0, "append", "rebuilt_coordinator"),
        Patch(SimulatedCoordinator, "_differs", _whatever_session),
    ),
    _bug(
        "a refused session is asked for again and again",
        Scene(4, "bank", "rebuilt_coordinator"),
        Patch(CoordinatorSession, "_begin_anew", forgotten),
    ),
    _bug(
        "generations and client IDs of a coordinator that was put back are believed",
        Scene(3, "append", "put_back"),
        Patch(partition_coordination_shell, "shows_set_back", _believes_the_numbers),
    ),
)
