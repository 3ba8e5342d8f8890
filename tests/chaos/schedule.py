"""What is done to connections between clients and servers, and when: acts that one seed decides.

Owns schedules as values. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final, NamedTuple

from tests.live.faults import BOTH, Act, Deed, Side

ACTS_MAX: Final = 10
BEGIN_SECONDS_MAX: Final = 0.8
"""When the last act of a schedule begins at the latest."""

LAST_SECONDS: Final = (0.02, 0.2, 0.6, 1.2)
"""How long acts last that do: less than a heartbeat, more than it takes to notice a silence, more
than one of the servers keeps a broken connection."""


class Planned(NamedTuple):
    """An act on a server's proxy, `at` seconds after the schedule began."""

    at: float
    server: int
    act: Act


@dataclass(frozen=True, slots=True)
class Schedule:
    """The acts of one schedule, in order."""

    seed: str
    number: int
    acts: tuple[Planned, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it as plain values, for people."""
        acts = [
            {"at": at, "server": server}
            | asdict(act)
            | {"deed": act.deed.name, "sides": [side.name for side in act.sides]}
            for at, server, act in self.acts
        ]
        return {"seed": self.seed, "number": self.number, "acts": acts}


DEEDS: Final[Sequence[tuple[int, Deed]]] = (
    (3, Deed.DELAY),
    (1, Deed.TRICKLE),
    (5, Deed.CUT),
    (3, Deed.CUT_SHORT),
    (3, Deed.HALF_CLOSE),
    (3, Deed.SWALLOW),
    (5, Deed.REPLAY),
)


def draw_schedule(seed: str, number: int, servers: int) -> Schedule:
    """Draw the schedule of that number, the same one for the same seed."""
    random = Random(f"{seed} schedule {number}")
    acts = [_draw_act(random, servers) for _ in range(random.randint(1, ACTS_MAX))]
    return Schedule(seed, number, tuple(sorted(acts, key=lambda planned: planned.at)))


def _draw_act(random: Random, servers: int) -> Planned:
    (deed,) = random.choices([each for _, each in DEEDS], [share for share, _ in DEEDS])
    sides = random.choice(((Side.REQUESTS,), (Side.ANSWERS,), BOTH))
    if deed is Deed.HALF_CLOSE:
        sides = random.choice(((Side.REQUESTS,), (Side.ANSWERS,)))
    at = round(random.uniform(0.0, BEGIN_SECONDS_MAX), 3)
    server = random.randrange(servers)
    act = Act(
        deed,
        sides,
        seconds=round(random.uniform(0.0, random.choice(LAST_SECONDS)), 3),
        which=random.choice((None, random.randrange(1000) / 1000)),
        share=round(random.choice((1.0, random.random())), 3),
    )
    return Planned(at, server, act)
