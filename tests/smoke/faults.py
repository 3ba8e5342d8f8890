"""What is done to a cluster, and when: a schedule that one seed decides.

Owns the schedule as values. Knows nothing of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

GAP_SECONDS = (0.5, 4.0)
"""Between the beginnings of two faults."""


class Harm(Enum):
    """What can happen to a process or to a server's way to the ZooKeeper."""

    KILLED = "killed"
    STOPPED = "stopped"
    ENDED = "told to end"
    CUT = "cut off the ZooKeeper"
    SILENT = "out of the ZooKeeper's hearing"


ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True)
class Fault:
    """`gap_seconds` after the fault before begins this one; it ends `seconds` later."""

    gap_seconds: float
    harm: Harm
    target: str
    seconds: float


CHOICES: Sequence[tuple[int, str, Harm, tuple[float, float]]] = (
    (6, "server", Harm.KILLED, (0.0, 5.0)),
    (5, "server", Harm.STOPPED, (0.2, 8.0)),
    (3, "server", Harm.ENDED, (0.0, 2.0)),
    (2, "server", Harm.CUT, (0.0, 0.0)),
    (3, "server", Harm.SILENT, (0.2, 8.0)),
    (6, "storage", Harm.KILLED, (0.0, 5.0)),
    (5, "storage", Harm.STOPPED, (0.2, 12.0)),
    (3, "storage", Harm.ENDED, (0.0, 2.0)),
    (2, ZOOKEEPER, Harm.KILLED, (0.0, 3.0)),
    (3, ZOOKEEPER, Harm.STOPPED, (0.2, 7.0)),
)
"""Share, whom, what, and for how long: shorter and longer than the session with the ZooKeeper, and
than a storage node is waited for."""


def schedule(seed: str, servers: Sequence[str], storages: Sequence[str]) -> Iterator[Fault]:
    """Yield faults without end, the same ones for the same seed."""
    random = Random(f"{seed} faults")
    targets = {"server": servers, "storage": storages, ZOOKEEPER: (ZOOKEEPER,)}
    shares = [choice[0] for choice in CHOICES]
    while True:
        _, kind, harm, bounds = random.choices(CHOICES, shares)[0]
        target = random.choice(targets[kind])
        yield Fault(random.uniform(*GAP_SECONDS), harm, target, random.uniform(*bounds))
