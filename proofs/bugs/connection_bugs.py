"""Seeded bugs of logical connections: what is kept, counted, sent again and given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.appends.own_appends import OwnAppends
from waltz.connections.connection_shell import ServerConnection
from waltz.server.clients.client_connection import Mounts, Proof
from waltz.server.clients.contexts import Contexts, RestoreContext
from waltz.wire.logical_link import LogicalLink
from waltz.wire.retained import Retained


def _all_but_the_first(resume: Callable[..., Any]) -> Callable[..., Any]:
    def resumed(self: Any, received: int) -> Any:
        again = resume(self, received)
        if again is not None and len(self._writes) > 1:
            return b"".join([*self._writes][1:])
        return again

    return resumed


def _all_that_is_kept(resume: Callable[..., Any]) -> Callable[..., Any]:
    def resumed(self: Any, received: int) -> Any:
        kept = b"".join(self._writes)
        return kept if resume(self, received) is not None else None

    return resumed


def _what_was_told(_: property) -> property:
    return property(_acknowledged)


def _acknowledged(self: Any) -> int:
    retained = vars(self)["_retained"]
    return int(vars(retained)["_told"])


def _losing_what_nothing_carries(write: Callable[..., None]) -> Callable[..., None]:
    def written(self: Any, data: bytes) -> None:
        if self._connection is not None:
            write(self, data)

    return written


def _taking_every_attempt(restore: Callable[..., None]) -> Callable[..., None]:
    def restored(self: Any, event: Any) -> None:
        connection_id = self._ids.get(event.key)
        if connection_id is None:
            restore(self, event)
            return
        self._mend(connection_id)
        self._effects.append(RestoreContext(connection_id))

    return restored


def _always(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *_: True


def _never(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *_: False


def _forgetting_the_gone(remove: Callable[..., None]) -> Callable[..., None]:
    def removed(self: Any, connection_id: int) -> None:
        remove(self, connection_id)
        self._gone.clear()

    return removed


def _forgetting_what_is_unanswered(lose: Callable[..., None]) -> Callable[..., None]:
    def lost(self: Any) -> None:
        lose(self)
        self.monitor.stop()
        self.monitor.start()

    return lost


def _bug(
    name: str,
    breaks: str,
    caught: Scene,
    *patches: Patch,
    plan: str = "broken_connections",
    workloads: tuple[str, ...] = ("append", "bank", "lock_contention", "slow_consumer"),
) -> Bug:
    return Bug(
        name=name,
        breaks=breaks,
        patches=patches,
        workloads=workloads,
        plans=(plan,),
        caught=caught,
    )


CONNECTION_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a connection that is restored sends one write too few again",
        "I12 convergence",
        Scene(3, "bank", "broken_connections"),
        Patch(Retained, "resume", _all_but_the_first),
    ),
    _bug(
        "a connection that is restored sends again what has arrived",
        "I5 verdicts",
        Scene(1, "bank", "broken_connections"),
        Patch(Retained, "resume", _all_that_is_kept),
    ),
    _bug(
        "a restore asks for what came after the last acknowledgement",
        "I5 verdicts",
        Scene(1, "bank", "broken_connections"),
        Patch(LogicalLink, "received", _what_was_told),
    ),
    _bug(
        "a client loses what it sends while its connection is broken",
        "I12 convergence",
        Scene(143, "slow_consumer", "broken_connections"),
        Patch(ServerConnection, "_write", _losing_what_nothing_carries),
    ),
    _bug(
        "a request to restore a connection is taken again when it is repeated",
        "I6 at most once",
        Scene(1000, "append", "meddling"),
        Patch(Contexts, "_restore", _taking_every_attempt),
        plan="meddling",
    ),
    _bug(
        "whoever repeats what a connection has sent speaks for its client",
        "I6 at most once",
        Scene(1, "bank", "meddling"),
        Patch(Mounts, "is_repeated", _never),
        plan="meddling",
    ),
    _bug(
        "what a connection has sent counts again once it is gone",
        "I6 at most once",
        Scene(21, "bank", "meddling"),
        Patch(Mounts, "remove", _forgetting_the_gone),
        plan="meddling",
    ),
    _bug(
        "a client whose connection is replaced forgets its unanswered appends",
        "I12 convergence",
        Scene(0, "append", "broken_connections"),
        Patch(OwnAppends, "lose_stream", _forgetting_what_is_unanswered),
    ),
    _bug(
        "whoever mounts under a client's ID is that client",
        "I12 convergence",
        Scene(0, "append", "hostile_peers"),
        Patch(Proof, "is_same_client", _always),
        plan="hostile_peers",
    ),
)
