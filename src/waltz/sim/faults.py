"""Fault plans: what happens to whom and when, as data drawn from the seed.

Owns the list of plans. A plan only says what shall happen; `cluster.py` carries it out. Moments are
given in progress of the workload, not in seconds, so that a fault meets a cluster at work however
fast the network of that run is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class Members:
    """Names of the processes that faults may strike."""

    storages: Sequence[str]
    servers: Sequence[str]
    clients: Sequence[str]


@dataclass(frozen=True, slots=True)
class Crash:
    """The processes `names` die at one moment and start again, each after its own pause."""

    progress: float
    """Share of the workload's transactions that have ended by then, 0 to 1."""

    delay_seconds: float
    names: tuple[str, ...]
    disk_operations: tuple[int, ...]
    """Per process: how many more disk operations it gets done, to die in the middle of its work."""

    power_lost: bool
    """Whether the disks lose what was not synced; else only the processes die."""

    pause_seconds: tuple[float, ...]
    """Per process: how long it stays dead."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Bytes between the process `name` and `others` are held for a while, both ways."""

    progress: float
    delay_seconds: float
    name: str
    others: tuple[str, ...]
    with_coordinator: bool
    """Whether it cannot reach the coordinator either; its session may end meanwhile."""

    seconds: float
    session_ended: bool = False
    """Whether the coordinator, too, takes it for dead at once and not only in time."""


Fault = Crash | Isolation

Draw = Callable[[Random, Members], Sequence[Fault]]
"""Draws the faults of one run, in order of progress."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind of run."""

    draw: Draw
    overlapping: bool = False
    """Whether a fault may strike while another one lasts; else it waits until that is over."""
    server_count_min: int = 1


DISK_OPERATIONS_MAX: Final = 30
PAUSE_SECONDS_MAX: Final = 20.0


def no_faults(random: Random, members: Members) -> Sequence[Fault]:
    """Nothing fails: whatever goes wrong then is wrong at its simplest."""
    return ()


def storage_crash(random: Random, members: Members) -> Sequence[Fault]:
    """One storage node at a time dies and comes back, once to three times."""
    return [
        _crash(random, moment, [random.choice(members.storages)]) for moment in _moments(random, 3)
    ]


def power_cut(random: Random, members: Members) -> Sequence[Fault]:
    """All storage nodes lose power at one moment, once or twice."""
    return [
        _crash(random, moment, members.storages, power_lost=True) for moment in _moments(random, 2)
    ]


def server_crash(random: Random, members: Members) -> Sequence[Fault]:
    """One server at a time dies and comes back, once to three times."""
    return [
        _crash(random, moment, [random.choice(members.servers)]) for moment in _moments(random, 3)
    ]


def isolation(random: Random, members: Members) -> Sequence[Fault]:
    """One process cannot reach some of the others for a while, once to three times."""
    return [_isolation(random, moment, members) for moment in _moments(random, 3)]


def swizzle(random: Random, members: Members) -> Sequence[Fault]:
    """Links between servers and storage nodes clog one after the other and clear in another order,
    and while they are clogged somebody dies.

    What one replica got and the others did not is the rarest state in calm weather.
    """
    faults: list[Fault] = []
    for moment in _moments(random, 2):
        clogged = random.sample(members.storages, random.randint(1, len(members.storages)))
        faults += [
            Isolation(
                progress=moment,
                delay_seconds=random.uniform(0.0, 0.02),
                name=name,
                others=tuple(members.servers),
                with_coordinator=False,
                seconds=random.uniform(0.0, random.choice((0.1, 2.0, 20.0))),
            )
            for name in clogged
        ]
        victims = [random.choice([*members.storages, *members.servers])]
        faults.append(
            replace(_crash(random, moment, victims), delay_seconds=random.uniform(0.0, 0.2))
        )
    return faults


def stale_server(random: Random, members: Members) -> Sequence[Fault]:
    """A server and some clients lose the coordinator but nobody else, and go on with what they
    know, while the other server takes the partitions over for the other clients; once or twice.

    Only the storage nodes can keep such a server from writing.
    """
    faults: list[Fault] = []
    for moment in _moments(random, 2):
        server = random.choice(members.servers)
        clients = random.sample(members.clients, random.randint(1, len(members.clients)))
        seconds = random.choice((random.uniform(0.0, 1.0), random.uniform(0.0, 30.0)))
        faults += [
            Isolation(
                progress=moment,
                delay_seconds=0.0,
                name=name,
                others=(),
                with_coordinator=True,
                seconds=seconds,
                session_ended=name == server,
            )
            for name in (*clients, server)
        ]
    return faults


def everything(random: Random, members: Members) -> Sequence[Fault]:
    """All kinds of faults, up to six."""
    faults: list[Fault] = []
    for moment in _moments(random, 6):
        names = random.choice(
            (
                [random.choice(members.storages)],
                [random.choice(members.servers)],
                [*members.storages],
                [*members.storages, *members.servers],
                [],
            )
        )
        faults.append(
            _crash(random, moment, names) if names else _isolation(random, moment, members)
        )
    return faults


def _moments(random: Random, count_max: int) -> list[float]:
    return sorted(random.random() for _ in range(random.randint(1, count_max)))


def _delay_seconds(random: Random) -> float:
    return random.choice((0.0, random.uniform(0.0, 0.05)))


def _pause_seconds(random: Random) -> float:
    return random.choice((0.0, random.uniform(0.0, 1.0), random.uniform(0.0, PAUSE_SECONDS_MAX)))


def _crash(
    random: Random, progress: float, names: Sequence[str], power_lost: bool | None = None
) -> Crash:
    return Crash(
        progress=progress,
        delay_seconds=_delay_seconds(random),
        names=tuple(names),
        disk_operations=tuple(
            random.choice((0, random.randint(1, DISK_OPERATIONS_MAX))) for _ in names
        ),
        power_lost=random.random() < 0.7 if power_lost is None else power_lost,
        pause_seconds=tuple(_pause_seconds(random) for _ in names),
    )


def _isolation(random: Random, progress: float, members: Members) -> Isolation:
    name = random.choice([*members.storages, *members.servers])
    others = [other for other in (*members.storages, *members.servers) if other != name]
    return Isolation(
        progress=progress,
        delay_seconds=_delay_seconds(random),
        name=name,
        others=tuple(random.sample(others, random.randint(1, len(others)))),
        with_coordinator=random.random() < 0.5,
        seconds=random.choice((random.uniform(0.0, 1.0), random.uniform(0.0, 30.0))),
    )


PLANS: Final[dict[str, Plan]] = {
    "none": Plan(no_faults),
    "storage_crash": Plan(storage_crash),
    "power_cut": Plan(power_cut),
    "server_crash": Plan(server_crash),
    "isolation": Plan(isolation),
    "swizzle": Plan(swizzle, overlapping=True),
    "stale_server": Plan(stale_server, overlapping=True, server_count_min=2),
    "everything": Plan(everything, overlapping=True),
}
