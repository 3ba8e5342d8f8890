"""What is done to connections between clients and servers, and when: acts that one seed decides.

Owns schedules as values. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from random import Random
from typing import Any, Final

ACTS_MAX: Final = 10
BEGIN_SECONDS_MAX: Final = 0.8
"""When the last act of a schedule begins at the latest."""

LAST_SECONDS: Final = (0.02, 0.2, 0.6, 1.2)
"""How long acts last that do: less than a heartbeat, more than it takes to notice a silence, more
than one of the servers keeps a broken connection."""


class Deed(Enum):
    """What can be done to a connection that passes the proxy."""

    DELAY = "hold what is sent, and let it through later"
    TRICKLE = "let a few bytes through at a time"
    CUT = "reset it"
    CUT_SHORT = "let the next bytes through up to the middle of a frame, then reset it"
    HALF_CLOSE = "end one way for its receiver, and swallow what comes"
    SWALLOW = "let nothing through, tell nobody, and reset it in the end"
    REPLAY = "send what a connection has carried to its server again, on a new one"


class Side(Enum):
    """Which way bytes go."""

    REQUESTS = "from the client"
    ANSWERS = "from the server"


BOTH: Final = tuple(Side)


@dataclass(frozen=True, slots=True)
class Act:
    """`at` seconds after the schedule began, for `seconds` if it lasts."""

    at: float
    deed: Deed
    server: int
    """The number of the server, before which the proxy stands."""
    sides: tuple[Side, ...] = BOTH
    seconds: float = 0.0
    which: float | None = None
    """Which of the connections, as a share of their list, below 1; None: all, and those that
    come."""
    share: float = 1.0
    """Of bytes: how many pass, or are sent again."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The acts of one schedule, in order."""

    seed: str
    number: int
    acts: tuple[Act, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it as plain values, for people."""
        acts = [
            asdict(act) | {"deed": act.deed.name, "sides": [side.name for side in act.sides]}
            for act in self.acts
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
    return Schedule(seed, number, tuple(sorted(acts, key=lambda act: act.at)))


def _draw_act(random: Random, servers: int) -> Act:
    (deed,) = random.choices([each for _, each in DEEDS], [share for share, _ in DEEDS])
    sides = random.choice(((Side.REQUESTS,), (Side.ANSWERS,), BOTH))
    if deed is Deed.HALF_CLOSE:
        sides = random.choice(((Side.REQUESTS,), (Side.ANSWERS,)))
    return Act(
        at=round(random.uniform(0.0, BEGIN_SECONDS_MAX), 3),
        deed=deed,
        server=random.randrange(servers),
        sides=sides,
        seconds=round(random.uniform(0.0, random.choice(LAST_SECONDS)), 3),
        which=random.choice((None, random.randrange(1000) / 1000)),
        share=round(random.choice((1.0, random.random())), 3),
    )
