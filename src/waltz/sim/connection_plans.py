"""The fault plan of what lies between clients and servers: connections that break and come back.

Owns when these break, how often in a row, and for how long nothing gets through: less than a
moment, more than a heartbeat, more than a connection can be restored for.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from waltz.sim.drawing import Stage, moments, some
from waltz.sim.faults import Crash, Disconnection, Fault, Partition, Pause
from waltz.sim.network import Way


def broken_connections(random: Random, stage: Stage) -> Sequence[Fault]:
    """Connections of clients break, one after the other or all at once, up to eight times."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 8):
        faults += _breaks(random, moment, stage)
    return faults


def _breaks(random: Random, progress: float, stage: Stage) -> list[Fault]:
    links = [(client, server) for client in stage.clients for server in stage.servers]
    match random.choice(("once", "again and again", "silence", "silence", "pause", "restart")):
        case "once":
            return [_disconnection(random, progress, links, 0.05)]
        case "again and again":
            slowest = random.choice((0.01, 0.3, 3.0))
            return [
                _disconnection(random, progress, links, slowest)
                for _ in range(random.randint(2, 6))
            ]
        case "silence":
            pairs = some(random, links)
            ways = tuple(pair if random.random() < 0.5 else pair[::-1] for pair in pairs)
            if random.random() < 0.5:
                ways = (*pairs, *(pair[::-1] for pair in pairs))
            return [
                Partition(
                    progress=progress,
                    delay_seconds=random.uniform(0.0, 0.05),
                    ways=ways,
                    seconds=random.choice(
                        (random.uniform(0.0, 1.0), random.uniform(5.0, 15.0), 25.0, 45.0)
                    ),
                    breaks=random.random() < 0.7,
                )
            ]
        case "pause":
            names = some(random, [*stage.clients, *stage.servers])
            return [
                Pause(
                    progress=progress,
                    delay_seconds=random.uniform(0.0, 0.05),
                    names=tuple(names),
                    seconds=tuple(random.choice((0.5, 8.0, 12.0, 35.0)) for _ in names),
                ),
                _disconnection(random, progress, links, 10.0),
            ]
        case _:
            return [
                Crash(
                    progress=progress,
                    delay_seconds=random.uniform(0.0, 0.05),
                    names=(random.choice(stage.servers),),
                    disk_operations=(0,),
                    power_lost=False,
                    pause_seconds=(random.choice((0.0, 0.0, 1.0)),),
                ),
                _disconnection(random, progress, links, 0.5),
            ]


def _disconnection(
    random: Random, progress: float, links: Sequence[Way], slowest_seconds: float
) -> Disconnection:
    return Disconnection(
        progress=progress,
        delay_seconds=random.uniform(0.0, slowest_seconds),
        pairs=tuple(some(random, links)),
    )
