"""Fault plans: which faults a run has, drawn from its seed.

Owns the list of plans. Whatever a plan without harm to disks does, nothing that was reported
committed may be lost, and once it is over everything must work again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from waltz.sim.faults.connection_plans import broken_connections, hostile_peers, meddling
from waltz.sim.faults.contest_plans import (
    changing_replicas,
    contested_partition,
    growing_cluster,
    lone_tails,
    outlived_tails,
)
from waltz.sim.faults.disk_plans import (
    bit_flips,
    failing_disk,
    full_disk,
    lost_disk,
    lost_files,
    old_disk,
    slow_disk,
    slowness,
)
from waltz.sim.faults.drawing import (
    FaultStage,
    crash,
    delay_seconds,
    moments,
    pause_seconds,
    some,
    span_seconds,
)
from waltz.sim.faults.kinds import (
    ChangedPolicy,
    ClockDrift,
    ClockJump,
    CoordinatorOutage,
    CoordinatorSlowness,
    Crash,
    Disconnection,
    Fault,
    Flapping,
    ForeignWrites,
    Isolation,
    LostAnswers,
    Partition,
    Pause,
    PutBack,
    Rebuilt,
    SessionLoss,
    SetBack,
    SlowLinks,
    Stop,
)

Draw = Callable[[Random, FaultStage], Sequence[Fault]]
"""Draws the faults of one run, in order of progress."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind of run."""

    draw: Draw
    overlapping: bool = False
    """Whether a fault may strike while another one lasts; otherwise it waits until that is over."""
    server_count_min: int = 1
    spare_count_max: int = 0
    harms_disks: bool = False
    """Whether copies of durable records are harmed: of each record, on a minority of the disks."""
    latest_version_only: bool = False
    """Whether all processes speak the latest client protocol: older versions cannot tell a replay
    from the original."""


def no_faults(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Nothing fails: a violation then is at its simplest."""
    return ()


# Processes


def storage_crash(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One storage node at a time dies and comes back, once to three times."""
    return [
        crash(random, moment, [random.choice(stage.storages)])
        for moment in moments(random, stage, 3)
    ]


def power_cut(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """All storage nodes lose power at one moment, once or twice."""
    return [
        crash(random, moment, stage.storages, power_lost=True)
        for moment in moments(random, stage, 2)
    ]


def server_crash(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One server at a time dies and comes back, once to three times."""
    return [
        crash(random, moment, [random.choice(stage.servers)])
        for moment in moments(random, stage, 3)
    ]


def client_crash(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Clients die or are ended in the middle of their work and come back, once to four times."""
    return [
        crash(random, moment, some(random, stage.clients), power_lost=False)
        if random.random() < 0.7
        else _stop(random, moment, some(random, stage.clients), one_by_one=False)
        for moment in moments(random, stage, 4)
    ]


def rolling_restart(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """All storage nodes and servers are restarted in an orderly way, one after the other."""
    names = [*stage.storages, *stage.servers]
    return [
        _stop(random, moment, random.sample(names, len(names)), one_by_one=True)
        for moment in moments(random, stage, 2)
    ]


def mass_restart(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """All processes end at one moment, in an orderly way or not, and come back."""
    everybody = [*stage.storages, *stage.servers, *stage.clients]
    return [
        _stop(random, moment, everybody, one_by_one=False)
        if random.random() < 0.5
        else crash(random, moment, everybody)
        for moment in moments(random, stage, 2)
    ]


def pauses(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Processes of all kinds stand still and continue, once to four times, perhaps together."""
    return [_pause(random, moment, stage) for moment in moments(random, stage, 4)]


# Network


def isolation(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One process cannot reach some of the others for a while, once to three times."""
    return [_isolation(random, moment, stage) for moment in moments(random, stage, 3)]


def swizzle(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Links between servers and storage nodes clog one after the other and clear in another order,
    and while they are clogged a process dies.

    Records that one replica got and the others did not are the rarest state in calm weather.
    """
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        clogged = random.sample(stage.storages, random.randint(1, len(stage.storages)))
        faults += [
            Isolation(
                progress=moment,
                delay_seconds=random.uniform(0.0, 0.02),
                name=name,
                others=tuple(stage.servers),
                with_coordinator=False,
                seconds=random.uniform(0.0, random.choice((0.1, 2.0, 20.0))),
            )
            for name in clogged
        ]
        victims = [random.choice([*stage.storages, *stage.servers])]
        faults.append(
            replace(crash(random, moment, victims), delay_seconds=random.uniform(0.0, 0.2))
        )
    return faults


def stale_server(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """A server and some clients lose the coordinator and nothing else, and continue with what they
    know, while the other server takes the partitions over for the other clients; once or twice.

    Only the storage nodes can keep such a server from writing.
    """
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        server = random.choice(stage.servers)
        clients = random.sample(stage.clients, random.randint(1, len(stage.clients)))
        seconds = random.choice((random.uniform(0.0, 1.0), random.uniform(0.0, 30.0)))
        faults += [
            Isolation(
                progress=moment,
                name=name,
                others=(),
                with_coordinator=True,
                seconds=seconds,
                session_ended=name == server,
            )
            for name in (*clients, server)
        ]
    return faults


def partial_partition(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Pairs cannot reach each other while both reach all other processes, once to three times."""
    return [_partition(random, moment, stage) for moment in moments(random, stage, 3)]


def one_way(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Bytes from one process to another are held, but not those back, once to three times."""
    return [_one_way(random, moment, stage) for moment in moments(random, stage, 3)]


def slow_links(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Some ways take long, up to several seconds, once to three times, and overlapping."""
    return [_slow_links(random, moment, stage) for moment in moments(random, stage, 3)]


def flapping(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Links come and go, and connections are lost, once to four times."""
    return [_flapping(random, moment, stage) for moment in moments(random, stage, 4)]


# Coordinator and clocks


def coordinator_trouble(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """The coordinator ends sessions, is slow or away, loses answers, and has other writers; and
    sometimes a server dies meanwhile, so that the next one needs it."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 4):
        faults.append(_coordinator_trouble(random, moment, stage))
        if random.random() < 0.5:
            faults.append(crash(random, moment, [random.choice(stage.servers)]))
    return faults


def set_back(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """A backup of the coordinator is restored while all servers are stopped, once or twice, and
    storage nodes die now and then, so that some have missed sessions."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        faults.append(
            SetBack(
                progress=moment,
                names=tuple(stage.servers),
                seconds=random.choice((1.0, 10.0, 60.0)) * random.random() * stage.length,
                pause_seconds=pause_seconds(random),
            )
        )
        for _ in range(random.randint(0, 3)):
            faults.append(crash(random, moment, [random.choice(stage.storages)]))
    return faults


def rebuilt_coordinator(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """The coordinator is made anew from a backup while all servers are stopped, once or twice, and
    its nodes get the versions that clients have seen; servers and storage nodes die now and
    then."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        faults.append(
            Rebuilt(
                progress=moment,
                names=tuple(stage.servers),
                survivors=tuple(stage.clients),
                seconds=random.choice((0.0, 1.0, 10.0)) * random.random(),
                refuses=random.random() < 0.3,
                pause_seconds=random.choice((0.0, 0.0, 1.0)) * random.random(),
            )
        )
        for _ in range(random.randint(0, 2)):
            faults.append(crash(random, moment, [random.choice([*stage.storages, *stage.servers])]))
    return faults


def put_back(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """The coordinator's file of some seconds ago is put back while all servers are stopped, once or
    twice, after partitions have moved; storage nodes die now and then, so that some have missed
    sessions."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        moves = [random.choice(stage.servers) for _ in range(random.randint(1, 6))]
        faults.append(
            PutBack(
                progress=moment,
                names=tuple(stage.servers),
                seconds=random.choice((1.0, 10.0)) * random.random(),
                moves=tuple(moves),
                pause_seconds=pause_seconds(random),
            )
        )
        for _ in range(random.randint(0, 2)):
            faults.append(crash(random, moment, [random.choice(stage.storages)]))
    return faults


def changing_policy(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Partitions are denied to every client for a while, once to three times, while servers and
    clients die and lose each other, and the coordinator is slow now and then."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 3):
        partitions = range(stage.partition_count)
        faults.append(
            ChangedPolicy(
                progress=moment,
                delay_seconds=delay_seconds(random),
                denied=tuple(sorted(random.sample(partitions, random.randint(1, len(partitions))))),
                appends_only=random.random() < 0.5,
                seconds=random.choice((1.0, 10.0, 100.0)) * random.random(),
            )
        )
        for _ in range(random.randint(0, 3)):
            within = random.choice((0.1, 1.0, 10.0))
            other: Fault
            match random.randrange(4):
                case 0:
                    other = crash(random, moment, [random.choice(stage.servers)])
                case 1:
                    other = crash(random, moment, some(random, stage.clients), power_lost=False)
                case 2:
                    other = SessionLoss(progress=moment, name=random.choice(stage.servers))
                case _:
                    other = CoordinatorSlowness(
                        progress=moment,
                        seconds=span_seconds(random),
                        slowest_seconds=random.choice((0.1, 1.0)),
                    )
            faults.append(replace(other, delay_seconds=random.uniform(0.0, within)))
    return faults


def moving_partitions(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Servers lose their sessions over and over, so that partitions move back and forth, while all
    processes learn of it late: the server that is asked may be a previous owner, and what a client
    is to be told is under way for long."""
    fed = tuple((server, client) for client in stage.clients for server in stage.servers)
    first = random.uniform(0.0, 0.3)
    return [
        CoordinatorSlowness(
            progress=first,
            seconds=random.uniform(5.0, 60.0) * stage.length,
            slowest_seconds=random.choice((0.1, 0.5, 1.0)),
        ),
        SlowLinks(
            progress=first,
            ways=fed,
            seconds=random.uniform(5.0, 60.0) * stage.length,
            slowest_seconds=random.choice((0.05, 1.0, 3.0)),
        ),
        *(
            SessionLoss(
                progress=max(first, moment),
                delay_seconds=delay_seconds(random),
                name=random.choice(stage.servers),
            )
            for moment in sorted(random.random() for _ in range(10 * stage.length))
        ),
    ]


def clock_trouble(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Wall clocks jump and clocks drift apart; sometimes a storage node dies meanwhile."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 4):
        faults.append(_clock_trouble(random, moment, stage))
        if random.random() < 0.3:
            faults.append(crash(random, moment, [random.choice(stage.storages)]))
    return faults


def everything(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """All kinds of faults that harm no disk, up to six, together."""
    drawers = (
        _some_crash, _some_crash, _some_crash, _some_stop, _pause, _isolation, _partition, _one_way,
        _slow_links, _flapping, _coordinator_trouble, _clock_trouble, slowness,
    )  # fmt: skip
    return [random.choice(drawers)(random, moment, stage) for moment in moments(random, stage, 6)]


# The parts of plans


def _some_crash(random: Random, progress: float, stage: FaultStage) -> Crash:
    groups = (
        [random.choice(stage.storages)],
        [random.choice(stage.servers)],
        some(random, stage.clients),
        [*stage.storages],
        [*stage.storages, *stage.servers],
    )
    return crash(random, progress, random.choice(groups))


def _stop(random: Random, progress: float, names: Sequence[str], *, one_by_one: bool) -> Stop:
    return Stop(
        progress=progress,
        delay_seconds=delay_seconds(random),
        names=tuple(names),
        pause_seconds=tuple(pause_seconds(random) for _ in names),
        one_by_one=one_by_one,
    )


def _some_stop(random: Random, progress: float, stage: FaultStage) -> Stop:
    names = some(random, [*stage.storages, *stage.servers, *stage.clients])
    return _stop(random, progress, names, one_by_one=random.random() < 0.5)


def _pause(random: Random, progress: float, stage: FaultStage) -> Pause:
    names = some(random, [*stage.storages, *stage.servers, *stage.clients])
    return Pause(
        progress=progress,
        delay_seconds=delay_seconds(random),
        names=tuple(names),
        seconds=tuple(span_seconds(random) for _ in names),
    )


def _isolation(random: Random, progress: float, stage: FaultStage) -> Isolation:
    name = random.choice([*stage.storages, *stage.servers])
    others = [other for other in (*stage.storages, *stage.servers) if other != name]
    return Isolation(
        progress=progress,
        delay_seconds=delay_seconds(random),
        name=name,
        others=tuple(random.sample(others, random.randint(1, len(others)))),
        with_coordinator=random.random() < 0.5,
        seconds=random.choice((random.uniform(0.0, 1.0), random.uniform(0.0, 30.0))),
    )


def _partition(random: Random, progress: float, stage: FaultStage) -> Partition:
    pairs = random.sample(stage.links, random.randint(1, min(4, len(stage.links))))
    return Partition(
        progress=progress,
        delay_seconds=delay_seconds(random),
        ways=(*pairs, *((other, one) for one, other in pairs)),
        seconds=span_seconds(random),
        breaks=random.random() < 0.5,
    )


def _one_way(random: Random, progress: float, stage: FaultStage) -> Partition:
    pairs = random.sample(stage.links, random.randint(1, min(3, len(stage.links))))
    return Partition(
        progress=progress,
        delay_seconds=delay_seconds(random),
        ways=tuple(pair if random.random() < 0.5 else pair[::-1] for pair in pairs),
        seconds=span_seconds(random),
        breaks=random.random() < 0.3,
    )


def _slow_links(random: Random, progress: float, stage: FaultStage) -> SlowLinks:
    ways = [*stage.links, *((other, one) for one, other in stage.links)]
    return SlowLinks(
        progress=progress,
        delay_seconds=delay_seconds(random),
        ways=tuple(random.sample(ways, random.randint(1, min(6, len(ways))))),
        seconds=span_seconds(random),
        slowest_seconds=random.choice((0.02, 0.5, 5.0)),
    )


def _flapping(random: Random, progress: float, stage: FaultStage) -> Fault:
    delay = delay_seconds(random)
    pairs = random.sample(stage.links, random.randint(1, min(3, len(stage.links))))
    if random.random() < 0.4:
        return Disconnection(progress=progress, delay_seconds=delay, pairs=tuple(pairs))
    down, up = random.choice(((0.01, 0.01), (0.5, 0.1), (2.0, 3.0), (11.0, 0.3)))
    return Flapping(
        progress=progress,
        delay_seconds=delay,
        one=pairs[0][0],
        other=pairs[0][1],
        times=random.randint(2, 6),
        down_seconds=random.uniform(0.0, down),
        up_seconds=random.uniform(0.0, up),
    )


def _coordinator_trouble(random: Random, progress: float, stage: FaultStage) -> Fault:
    delay, seconds = delay_seconds(random), span_seconds(random)
    match random.randrange(5):
        case 0:
            name = random.choice([*stage.servers, *stage.clients])
            return SessionLoss(progress=progress, delay_seconds=delay, name=name)
        case 1:
            return CoordinatorOutage(progress=progress, delay_seconds=delay, seconds=seconds)
        case 2:
            return CoordinatorSlowness(
                progress=progress,
                delay_seconds=delay,
                seconds=seconds,
                slowest_seconds=random.choice((0.1, 1.0, 10.0)),
            )
        case 3:
            return LostAnswers(
                progress=progress,
                delay_seconds=delay,
                seconds=seconds,
                share=random.choice((0.1, 0.5, 0.9)),
            )
        case _:
            return ForeignWrites(
                progress=progress,
                delay_seconds=delay,
                choices=tuple(random.random() for _ in range(random.randint(1, 20))),
                pause_seconds=random.choice((0.0, 0.01, 0.3)),
            )


def _clock_trouble(random: Random, progress: float, stage: FaultStage) -> Fault:
    names = tuple(some(random, [*stage.storages, *stage.servers, *stage.clients]))
    if random.random() < 0.4:
        return ClockJump(
            progress=progress,
            delay_seconds=delay_seconds(random),
            names=names,
            milliseconds=tuple(
                random.choice((-1, 1)) * random.choice((1_000, 3_600_000, 10**10)) for _ in names
            ),
        )
    return ClockDrift(
        progress=progress,
        delay_seconds=delay_seconds(random),
        names=names,
        rates=tuple(random.choice((0.5, 0.99, 1.01, 2.0)) for _ in names),
        seconds=span_seconds(random),
    )


PLANS: Final[dict[str, Plan]] = {
    "none": Plan(no_faults),
    "storage_crash": Plan(storage_crash),
    "power_cut": Plan(power_cut),
    "server_crash": Plan(server_crash),
    "client_crash": Plan(client_crash),
    "rolling_restart": Plan(rolling_restart),
    "mass_restart": Plan(mass_restart),
    "pauses": Plan(pauses, overlapping=True),
    "isolation": Plan(isolation),
    "swizzle": Plan(swizzle, overlapping=True),
    "stale_server": Plan(stale_server, overlapping=True, server_count_min=2),
    "partial_partition": Plan(partial_partition),
    "one_way": Plan(one_way),
    "slow_links": Plan(slow_links, overlapping=True),
    "flapping": Plan(flapping, overlapping=True),
    "broken_connections": Plan(broken_connections, overlapping=True),
    "meddling": Plan(meddling, overlapping=True, latest_version_only=True),
    "hostile_peers": Plan(hostile_peers, overlapping=True),
    "coordinator_trouble": Plan(coordinator_trouble, overlapping=True),
    "moving_partitions": Plan(moving_partitions, overlapping=True, server_count_min=2),
    "contested_partition": Plan(contested_partition, overlapping=True, server_count_min=2),
    "lone_tails": Plan(lone_tails, overlapping=True),
    "outlived_tails": Plan(outlived_tails, overlapping=True),
    "changing_replicas": Plan(changing_replicas, overlapping=True, spare_count_max=3),
    "growing_cluster": Plan(growing_cluster, overlapping=True, latest_version_only=True),
    "clock_trouble": Plan(clock_trouble, overlapping=True),
    "slow_disk": Plan(slow_disk, overlapping=True),
    "everything": Plan(everything, overlapping=True),
    "failing_disk": Plan(failing_disk, overlapping=True),
    "full_disk": Plan(full_disk, overlapping=True),
    "bit_flips": Plan(bit_flips, overlapping=True, harms_disks=True),
    "lost_disk": Plan(lost_disk, overlapping=True, harms_disks=True),
    "old_disk": Plan(old_disk, overlapping=True, harms_disks=True),
    "lost_files": Plan(lost_files, overlapping=True, harms_disks=True),
    "set_back": Plan(set_back, overlapping=True),
    "rebuilt_coordinator": Plan(rebuilt_coordinator, overlapping=True),
    "put_back": Plan(put_back, overlapping=True, server_count_min=2),
    "changing_policy": Plan(changing_policy, overlapping=True),
}
