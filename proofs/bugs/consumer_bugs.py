"""Seeded bugs of named consumers: marks that were not applied, and lag that nobody has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.applied_marks_shell import AppliedMarksTeller
from waltz.server.clients import mounted_clients
from waltz.server.clients.mounted_clients import ToldMark
from waltz.server.commit_ages import CommitAges, Lag


def _as_fed(position_of: Callable[..., Any]) -> Callable[..., Any]:
    def fed(self: Any, partition_id: Any) -> Any:
        """Return the position with the mark of arrival, as if all that arrived were applied."""
        position = position_of(self, partition_id)
        mark = self._runners[partition_id].machine.feed.fed if position is not None else None
        return None if position is None else position._replace(mark=mark)

    return fed


def _since_the_last_commit(_: Callable[..., Any]) -> Callable[..., Any]:
    def age(self: Any, mark: Any, high_water_mark: Any, now: float) -> Lag | None:
        """On an idle log everybody is behind, and on a busy one nobody."""
        seconds = now - self._since[-1] if self._since else 0.0
        return Lag(seconds, seconds)

    return age


def _as_sent(entry_of: Callable[..., Any]) -> Callable[..., Any]:
    def sent(facts: Any, mount: Any, told: Any, now: float) -> Any:
        """Take what was sent for applied, for a client that has told nothing yet."""
        if told is None and mount.sampled is None and mount.sent is not None:
            told = ToldMark(mount.sent, now)
        return entry_of(facts, mount, told, now)

    return sent


def _bug(name: str, caught: Scene, plans: tuple[str, ...], patch: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="consumers",
        patches=(patch,),
        workloads=("consumers",),
        plans=plans,
        caught=caught,
    )


CONSUMER_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a consumer tells what has arrived as applied",
        Scene(0, "consumers", "none"),
        ("none", "client_crash"),
        Patch(AppliedMarksTeller, "_position_of", _as_fed),
    ),
    _bug(
        "the age of the last commit is told as the lag of everybody",
        Scene(0, "consumers", "none"),
        ("none", "server_crash"),
        Patch(CommitAges, "lag_of", _since_the_last_commit),
    ),
    _bug(
        "what a client was sent is told as applied until it tells more",
        Scene(0, "consumers", "none"),
        ("none", "server_crash"),
        Patch(mounted_clients, "_entry", _as_sent),
    ),
)
