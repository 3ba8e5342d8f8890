"""The draws of fault plans: whom a fault strikes, when, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from waltz.sim.faults.kinds import Crash
from waltz.sim.simulated_network import Way

T = TypeVar("T")

DISK_OPERATIONS_MAX: Final = 30
PAUSE_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class FaultStage:
    """The processes that faults may strike, and the length of the run."""

    storages: Sequence[str]
    servers: Sequence[str]
    clients: Sequence[str]
    length: int = 1
    """The number of faults is this multiple of an ordinary run's."""
    spares: Sequence[str] = ()
    """Storage nodes that hold nothing at first."""
    partition_count: int = 1

    @property
    def links(self) -> list[Way]:
        """Return all pairs that talk with each other."""
        return [
            *((server, storage) for server in self.servers for storage in self.storages),
            *((client, server) for client in self.clients for server in self.servers),
        ]


def moments(random: Random, stage: FaultStage, count_max: int) -> list[float]:
    return sorted(random.random() for _ in range(random.randint(1, count_max) * stage.length))


def some(random: Random, names: Sequence[T]) -> list[T]:
    """Return one of `names`, or some, or all."""
    return random.sample(names, random.choice((1, random.randint(1, len(names)))))


def span_seconds(random: Random) -> float:
    """Draw how long a fault lasts: less than a request, less than a timeout, or more than any."""
    return random.choice(
        (random.uniform(0.0, 0.1), random.uniform(0.0, 2.0), random.uniform(0.0, 30.0))
    )


def delay_seconds(random: Random) -> float:
    return random.choice((0.0, random.uniform(0.0, 0.05)))


def pause_seconds(random: Random) -> float:
    return random.choice((0.0, random.uniform(0.0, 1.0), random.uniform(0.0, PAUSE_SECONDS_MAX)))


def crash(
    random: Random, progress: float, names: Sequence[str], power_lost: bool | None = None
) -> Crash:
    return Crash(
        progress=progress,
        delay_seconds=delay_seconds(random),
        names=tuple(names),
        disk_operations=tuple(
            random.choice((0, random.randint(1, DISK_OPERATIONS_MAX))) for _ in names
        ),
        power_lost=random.random() < 0.7 if power_lost is None else power_lost,
        pause_seconds=tuple(pause_seconds(random) for _ in names),
    )
