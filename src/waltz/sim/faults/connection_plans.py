"""The fault plans of the way between clients and servers: connections that break and come back, an
intruder who manipulates them, and peers with a false identity.

Owns when connections break, how often in a row, and for how long nothing gets through: less than a
moment, more than a heartbeat, more than a connection can be restored for.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from waltz.limits import CONNECTION_RESTORE_SECONDS
from waltz.sim.faults.drawing import FaultStage, moments, some
from waltz.sim.faults.kinds import (
    Crash,
    Disconnection,
    Fault,
    Forgery,
    HalfClose,
    Partition,
    Pause,
    Replay,
    SlowLinks,
)
from waltz.sim.simulated_network import Way


def broken_connections(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Connections of clients break, one after the other or all at once, up to eight times."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 8):
        faults += _breaks(random, moment, stage)
    return faults


def _breaks(random: Random, progress: float, stage: FaultStage) -> list[Fault]:
    links = _links(stage)
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
            return [_silence(random, progress, links)]
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


def meddling(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """An intruder between clients and servers delays, cuts, half-closes, swallows and replays, up
    to twelve times, and several of these at one moment."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 12):
        faults += _meddles(random, moment, stage)
    return faults


def hostile_peers(random: Random, stage: FaultStage) -> Sequence[Forgery]:
    """A peer that can reach the ports pretends to be a client, and a server, up to eight times."""
    return [_forgery(random, moment, stage) for moment in moments(random, stage, 8)]


def _forgery(random: Random, progress: float, stage: FaultStage) -> Forgery:
    return Forgery(
        progress=progress,
        delay_seconds=random.uniform(0.0, 0.05),
        server=random.choice(stage.servers),
        storages=tuple(some(random, stage.storages)),
        partition_id=random.randrange(stage.partition_count),
        # IDs are given in order, from 1 on, and there are but few clients.
        client_id=random.randint(1, 2 + len(stage.clients)),
        shows_token=random.random() < 0.5,
        sessions=tuple(
            random.choice((1, 3, 10, 1000, 2**19, 2**20, 2**40, 2**63 - 1))
            for _ in range(random.randint(1, 3))
        ),
        seconds=random.choice((0.0, 1.0, 20.0)) * random.random(),
    )


def _meddles(random: Random, progress: float, stage: FaultStage) -> list[Fault]:
    links = _links(stage)
    kinds = ("delay", "cut", "half-close", "swallow", "replay", "replay", "both", "outlast")
    match random.choice(kinds):
        case "delay":
            return [
                SlowLinks(
                    progress=progress,
                    delay_seconds=random.uniform(0.0, 0.05),
                    ways=_ways(random, links),
                    seconds=random.uniform(0.0, 10.0),
                    slowest_seconds=random.choice((0.02, 0.5, 5.0, 20.0)),
                )
            ]
        case "cut":
            return [_disconnection(random, progress, links, 0.3)]
        case "half-close":
            return [_half_close(random, progress, links)]
        case "swallow":
            return [_silence(random, progress, links)]
        case "replay":
            return [_replay(random, progress, links, 0.3)]
        case "outlast":
            return _outlasts(random, progress, links)
        case _:
            # A replay of what was sent before a break meets the connection that comes back after
            # it.
            return [
                random.choice((_disconnection(random, progress, links, 0.1),
                               _half_close(random, progress, links))),
                *(_replay(random, progress, links, 3.0) for _ in range(random.randint(1, 4))),
            ]  # fmt: skip


def _links(stage: FaultStage) -> list[Way]:
    return [(client, server) for client in stage.clients for server in stage.servers]


def _ways(random: Random, links: Sequence[Way]) -> tuple[Way, ...]:
    """Some links, one way each, or both ways."""
    pairs = some(random, links)
    ways = tuple(pair if random.random() < 0.5 else pair[::-1] for pair in pairs)
    if random.random() < 0.5:
        ways = (*pairs, *(pair[::-1] for pair in pairs))
    return ways


def _silence(random: Random, progress: float, links: Sequence[Way]) -> Partition:
    ways = _ways(random, links)
    return Partition(
        progress=progress,
        delay_seconds=random.uniform(0.0, 0.05),
        ways=ways,
        seconds=random.choice((random.uniform(0.0, 1.0), random.uniform(5.0, 15.0), 25.0, 45.0)),
        breaks=random.random() < 0.7,
    )


def _outlasts(random: Random, progress: float, links: Sequence[Way]) -> list[Fault]:
    """A client is kept away until its connections are forgotten everywhere, and an intruder replays
    its words meanwhile."""
    client = random.choice(links)[0]
    ways = tuple(way for way in links if way[0] == client)
    seconds = CONNECTION_RESTORE_SECONDS * random.uniform(1.1, 3.0)
    return [
        Disconnection(progress=progress, pairs=ways),
        Partition(
            progress=progress,
            ways=(*ways, *(way[::-1] for way in ways)),
            seconds=seconds,
            breaks=False,
        ),
        *(
            Replay(
                progress=progress,
                delay_seconds=random.uniform(0.0, seconds),
                ways=ways,
                choice=random.random(),
                kept=1.0,
                seconds=random.choice((0.1, 5.0)),
            )
            for _ in range(random.randint(2, 8))
        ),
    ]


def _half_close(random: Random, progress: float, links: Sequence[Way]) -> HalfClose:
    return HalfClose(
        progress=progress,
        delay_seconds=random.uniform(0.0, 0.05),
        ways=_ways(random, links),
        kept=random.choice((0.0, 1.0, random.random())),
    )


def _replay(
    random: Random, progress: float, links: Sequence[Way], slowest_seconds: float
) -> Replay:
    return Replay(
        progress=progress,
        delay_seconds=random.uniform(0.0, slowest_seconds),
        ways=tuple(some(random, links)),
        choice=random.choice((0.0, 1.0, random.random())),
        kept=random.choice((1.0, 1.0, random.random())),
        seconds=random.choice((0.0, 0.1, 5.0)),
    )


def _disconnection(
    random: Random, progress: float, links: Sequence[Way], slowest_seconds: float
) -> Disconnection:
    return Disconnection(
        progress=progress,
        delay_seconds=random.uniform(0.0, slowest_seconds),
        pairs=tuple(some(random, links)),
    )
