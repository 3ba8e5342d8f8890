"""Seeded bugs of histories: clients of a log that was restored to an earlier point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.cluster.histories import Histories
from waltz.connections.known_histories_shell import KnownHistories
from waltz.connections.sources_shell import CoordinatorSource
from waltz.errors import UnavailableError


def _names_only(check: Callable[..., None]) -> Callable[..., None]:
    """No mark is compared."""

    def checking(self: Any, partition: Any, stored: Any, mark: Any = None, **words: Any) -> None:
        check(self, partition, stored, **words)

    return checking


def _one_too_late(check: Callable[..., None]) -> Callable[..., None]:
    def checking(self: Any, partition: Any, stored: Any, mark: Any = None, **words: Any) -> None:
        check(self, partition, stored, None if mark is None else mark - 1, **words)

    return checking


def _unread(_: Callable[..., Any]) -> Callable[..., Any]:
    async def learning(self: Any, connection: Any, key: Any, otherwise: Any = None) -> None:
        self.current = self.current or Histories(key)

    return learning


def _going_on(kept: Callable[..., Any]) -> Callable[..., Any]:
    """The client keeps the histories that it knows if the coordinator does not answer."""

    async def keeping(self: Any) -> Histories:
        try:
            found: Histories = await kept(self)
        except UnavailableError:
            return self.histories or Histories(self.current.cluster_key)
        return found

    return keeping


def _bug(name: str, caught: Scene, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="restore",
        patches=patches,
        workloads=("archived",),
        plans=("none", "client_crash"),
        caught=caught,
    )


HISTORY_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a consumer above the fork follows on",
        Scene(1000, "archived", "none"),
        Patch(Histories, "check", _names_only),
    ),
    _bug(
        "a consumer may be one beyond the fork",
        Scene(1, "archived", "client_crash"),
        Patch(Histories, "check", _one_too_late),
    ),
    _bug(
        "a connection is used before its histories are known",
        Scene(1000, "archived", "none"),
        Patch(KnownHistories, "learn", _unread),
    ),
    Bug(
        name="a client that cannot ask whether the log was restored takes it for not restored",
        breaks="restore",
        patches=(Patch(CoordinatorSource, "_kept_histories", _going_on),),
        workloads=("archived",),
        plans=("server_crash", "outlived_tails"),
        caught=Scene(174, "archived", "server_crash"),
    ),
)
