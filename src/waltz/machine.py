"""The shape all state machines share: events in, effects out, time as an argument.

A machine owns one piece of protocol state. It never awaits, logs, reads a clock, draws randomness
or opens anything; `machine_shell.py`, a test or the simulator does that and feeds the results back
as events. There is no base class: a machine is whatever has these four members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)


class Machine(Protocol[Event, Effect]):
    @property
    def closed(self) -> bool:
        """Whether the machine has reached its end; it is not stepped again."""
        ...

    @property
    def deadline(self) -> float | None:
        """The time at which to step the machine even without an event, in seconds of the host's
        clock; None: there is none."""
        ...

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        """Take `events` in order and return what is to be done, in order. Never raises for a peer's
        fault: that is an effect too."""
        ...

    def check_invariants(self) -> None:
        """Assert what must always hold between steps; called by tests and the simulator."""
        ...
