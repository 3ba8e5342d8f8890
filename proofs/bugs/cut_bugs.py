"""Seeded bugs of cuts: commits that are announced during a hold, and holds that prove nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.operators import cuts_shell
from waltz.server.appends.outcomes import place_of
from waltz.server.hold import TIME_IS_UP, Hold
from waltz.server.server_partition import ServerPartition
from waltz.store.events import AppendsFailed, Committed
from waltz.wire.batch_protocol import Outcome, OutcomeRequest, OutcomeResponse


def _announces_on(let_through: Callable[..., Any]) -> Callable[..., Any]:
    def lets_through(self: Any, event: Any) -> Any:
        """Let commits through while the hold is in force."""
        if isinstance(event, Committed | AppendsFailed):
            return (event,)
        return let_through(self, event)

    return lets_through


def _one_by_one(hold: Callable[..., Any]) -> Callable[..., Any]:
    async def holding(self: Any, server: Any) -> None:
        async with self.__dict__.setdefault("turn", asyncio.Lock()):
            await hold(self, server)

    return holding


def _outcomes_first(receive: Callable[..., Any]) -> Callable[..., Any]:
    def receiving(self: Any, peer: Any, messages: Any, now: float) -> None:
        """A question about an append whose commit is kept back is answered at once."""
        for message in messages:
            if not isinstance(message, OutcomeRequest):
                continue
            for event in self._hold.kept_back if self._hold is not None else ():
                if isinstance(event, Committed):
                    place = place_of(event.batch, message.request_id)
                    if place is not None:
                        answer = OutcomeResponse(message.request_id, Outcome.COMMITTED, place)
                        self._outbox.add(peer.connection_id, answer)
        receive(self, peer, messages, now)

    return receiving


def _ends_early(begin: Callable[..., Any]) -> Callable[..., Any]:
    def beginning(self: Any, asked: Any, *others: Any) -> Any:
        """A tenth of the time, which the release does not hear of."""
        return begin(self, replace(asked, seconds=asked.seconds / 10), *others)

    return beginning


def _unnoticed(end: Callable[..., Any]) -> Callable[..., Any]:
    def ending(self: Any, reason: str) -> Any:
        kept_back = end(self, reason)
        if reason == TIME_IS_UP:
            self._broken_by = None
        return kept_back

    return ending


def _bug(name: str, caught: Scene, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="cuts",
        patches=patches,
        workloads=("transfers",),
        plans=("none",),
        caught=caught,
    )


CUT_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a hold ends before its time, and its release does not say so",
        Scene(7, "transfers", "none"),
        Patch(Hold, "begin", _ends_early),
        Patch(Hold, "end", _unnoticed),
    ),
    _bug(
        "marks are asked for one after the other, and nothing is held",
        Scene(2, "transfers", "none"),
        Patch(Hold, "let_through", _announces_on),
        Patch(cuts_shell._Attempt, "_hold", _one_by_one),  # noqa: SLF001
    ),
    _bug(
        "outcomes are told during a hold",
        Scene(8, "transfers", "none"),
        Patch(ServerPartition, "_receive", _outcomes_first),
    ),
)
