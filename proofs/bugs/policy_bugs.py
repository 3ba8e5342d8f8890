"""Seeded bugs of policies that change: what is denied, and what a client makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.appends.own_appends import OwnAppends
from waltz.client.partitions import mounting
from waltz.server.enforcement_shell import Enforcement


def _stored_all_the_same(without: Callable[..., Any]) -> Callable[..., Any]:
    def all_of(self: Any, client: Any, messages: Any, denials: Any) -> Any:
        return None if without(self, client, messages, denials) is None else messages

    return all_of


def _for_ever(_: float) -> float:
    return 1e9


def _certainly_not_written(give_up: Callable[..., Any]) -> Callable[..., Any]:
    def given_up(self: Any) -> Any:
        return [(submission, False) for submission, _ in give_up(self)]

    return given_up


def _bug(name: str, breaks: str, caught: Scene, patch: Patch) -> Bug:
    return Bug(
        name=name,
        breaks=breaks,
        patches=(patch,),
        workloads=("append", "bank", "crowd", "slow_consumer"),
        plans=("changing_policy",),
        caught=caught,
    )


POLICY_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a server stores an append that it has denied",
        "I5 verdict",
        Scene(1, "append", "changing_policy"),
        Patch(Enforcement, "_without", _stored_all_the_same),
    ),
    _bug(
        "a client never asks again for a denied partition",
        "I12 convergence",
        Scene(0, "append", "changing_policy"),
        Patch(mounting, "DENIED_SECONDS", _for_ever),
    ),
    _bug(
        "an append without an outcome counts as not written once its partition is denied",
        "I5 verdict",
        Scene(0, "crowd", "changing_policy"),
        Patch(OwnAppends, "give_up", _certainly_not_written),
    ),
)
