"""Fault plans of contests: partitions change their owner while storage nodes come and go.

Owns plans in which several sessions are being opened at a time, by servers that learn of each other
late or not at all, on replicas that forget what they were told without a sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from waltz.majority import majority
from waltz.sim.faults.drawing import FaultStage, crash, delay_seconds, moments, span_seconds
from waltz.sim.faults.kinds import (
    AddedPartitions,
    CoordinatorSlowness,
    Crash,
    Disconnection,
    Fault,
    Isolation,
    LostAnswers,
    Reassignment,
    SessionLoss,
    SlowLinks,
)

OPERATIONS_BACK_MAX: Final = 150
"""Disk operations in which a storage node opens its files, is cut and filled up again."""


def contested_partition(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Servers lose partitions, by session or by hearsay, and storage nodes restart, lose power and
    are out of reach, many times in a row, while all requests and answers are late; half of the time
    from the very start, when it is not known yet whether a partition holds anything.

    So sessions begin and fail in all stages: asked but not written, written but not open, open on
    some replicas; and a previous owner is still there, trying the same.
    """
    faults: list[Fault] = []
    starts = moments(random, stage, 2)
    if random.random() < 0.5:
        starts[0] = 0.0
    for moment in starts:
        seconds = random.choice((1.0, 5.0, 20.0))
        asked = [(server, storage) for server in stage.servers for storage in stage.storages]
        faults += [
            CoordinatorSlowness(
                progress=moment,
                seconds=seconds,
                slowest_seconds=random.choice((0.01, 0.1, 1.0)),
            ),
            SlowLinks(
                progress=moment,
                ways=(*asked, *((storage, server) for server, storage in asked)),
                seconds=seconds,
                slowest_seconds=random.choice((0.005, 0.05, 0.5)),
            ),
        ]
        for _ in range(random.randint(2, 8)):
            faults += _contest(random, moment, stage, seconds * random.random())
    return faults


def _contest(random: Random, progress: float, stage: FaultStage, begin: float) -> Sequence[Fault]:
    """A replica leaves the session and joins late, another one lags, and while that is written down
    the owner changes."""
    apart = random.choice((0.05, 0.3, 1.0))
    makers = (_leaving, _lagging, _change_of_owner)
    return [
        replace(make(random, progress, stage), delay_seconds=begin + apart * position * share)
        for position, make in enumerate(makers)
        if (share := random.random()) > 0.15
    ]


def _leaving(random: Random, progress: float, stage: FaultStage) -> Fault:
    if random.random() < 0.3:
        pair = (random.choice(stage.servers), random.choice(stage.storages))
        return Disconnection(progress=progress, pairs=(pair,))
    counts = (1, 1, 1, majority(len(stage.storages)), len(stage.storages))
    return _brief_crash(random, progress, random.sample(stage.storages, random.choice(counts)))


def _lagging(random: Random, progress: float, stage: FaultStage) -> Fault:
    return Isolation(
        progress=progress,
        name=random.choice(stage.storages),
        others=tuple(random.sample(stage.servers, random.randint(1, len(stage.servers)))),
        with_coordinator=False,
        seconds=random.uniform(0.0, random.choice((0.1, 1.0, 5.0))),
    )


def _change_of_owner(random: Random, progress: float, stage: FaultStage) -> Fault:
    server = random.choice(stage.servers)
    match random.randrange(4):
        case 0:
            return SessionLoss(progress=progress, name=server)
        case 1:
            return _brief_crash(random, progress, [server])
        case _:
            return Isolation(
                progress=progress,
                name=server,
                others=(),
                with_coordinator=True,
                seconds=random.uniform(0.0, random.choice((0.3, 3.0, 30.0))),
                session_ended=random.random() < 0.5,
            )


def _brief_crash(random: Random, progress: float, names: Sequence[str]) -> Crash:
    pauses = tuple(random.choice((0.0, random.uniform(0.0, 1.0))) for _ in names)
    return replace(crash(random, progress, names), pause_seconds=pauses)


def changing_replicas(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Replicas are added, removed and replaced, several at once and again before the last change is
    done, while storage nodes and servers die, lag and lose each other. Once to four times."""
    nodes = replace(stage, storages=(*stage.storages, *stage.spares))
    held = [tuple(stage.storages)] * stage.partition_count
    faults: list[Fault] = []
    for moment in moments(random, stage, 4):
        held, wanted = _reassigned(random, held, nodes.storages)
        faults.append(
            Reassignment(
                progress=moment,
                delay_seconds=delay_seconds(random),
                holders=tuple(wanted),
                at_once=random.random() < 0.7,
                pause_seconds=random.choice((0.0, random.uniform(0.0, 3.0))),
            )
        )
        within = random.choice((0.1, 1.0, 10.0))
        makers = (_leaving, _lagging, _change_of_owner, _late_coordinator)
        faults += [
            replace(
                random.choice(makers)(random, moment, nodes),
                delay_seconds=random.uniform(0.0, within),
            )
            for _ in range(random.randint(0, 4))
        ]
    return faults


def growing_cluster(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Partitions are added, once or twice, by operators whose processes die half way, while storage
    nodes and servers die, lag and lose each other."""
    faults: list[Fault] = []
    count = stage.partition_count
    for moment in moments(random, stage, 2):
        count += random.randint(1, 3)
        faults.append(
            AddedPartitions(
                progress=moment,
                delay_seconds=delay_seconds(random),
                to=count,
                killed_after=tuple(
                    random.uniform(0.0, random.choice((0.1, 1.0, 3.0)))
                    for _ in range(random.choice((0, 0, 1, 2, 3)))
                ),
            )
        )
        within = random.choice((0.1, 1.0, 10.0))
        makers = (_leaving, _lagging, _change_of_owner, _late_coordinator)
        faults += [
            replace(
                random.choice(makers)(random, moment, stage),
                delay_seconds=random.uniform(0.0, within),
            )
            for _ in range(random.randint(0, 4))
        ]
    return faults


def _reassigned(
    random: Random, held: Sequence[tuple[str, ...]], nodes: Sequence[str]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the holders of each partition after a change, and the change itself."""
    wanted = [_other_holders(random, each, nodes) for each in held]
    if random.random() < 0.5:
        wanted = [wanted[0]] * len(held)
    elif len(held) > 1:
        wanted[random.randrange(len(held))] = ()
    return [new or old for new, old in zip(wanted, held, strict=True)], wanted


def _other_holders(random: Random, held: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    others = [node for node in nodes if node not in held]
    match random.randrange(5):
        case 0 | 1 if others:
            count = random.randint(1, min(len(held), len(others)))
            staying = random.sample(held, len(held) - count)
            return (*staying, *random.sample(others, count))
        case 2 if others:
            return (*held, *random.sample(others, random.randint(1, len(others))))
        case 3 if len(held) > 1:
            return tuple(random.sample(held, random.randint(1, len(held) - 1)))
        case _:
            return tuple(random.sample(nodes, random.randint(1, min(5, len(nodes)))))


def _late_coordinator(random: Random, progress: float, stage: FaultStage) -> Fault:
    seconds = span_seconds(random)
    if random.random() < 0.3:
        share = random.choice((0.1, 0.5))
        return LostAnswers(progress=progress, seconds=seconds, share=share)
    slowest = random.choice((0.1, 1.0, 5.0))
    return CoordinatorSlowness(progress=progress, seconds=seconds, slowest_seconds=slowest)


def lone_tails(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """A replica gets appends that the others do not, and is away when the next owner begins without
    it; what only it holds is cut when it comes back, and then another process dies. Once to four
    times."""
    return [fault for moment in moments(random, stage, 4) for fault in _tail(random, moment, stage)]


def _tail(random: Random, progress: float, stage: FaultStage) -> Sequence[Fault]:
    holder, *others = random.sample(stage.storages, len(stage.storages))
    lag = random.uniform(0.02, random.choice((0.1, 1.0)))
    end = random.uniform(0.0, lag)
    away = random.choice((random.uniform(0.0, 0.5), random.uniform(0.0, 5.0)))
    again = random.choice(([holder], [holder, others[0]], [*stage.storages]))
    after = end + away + random.choice((0.01, random.uniform(0.0, 1.0)))
    return [
        *_lone_appends(random, progress, stage, holder, others, lag=lag, end=end, away=away),
        *(
            replace(
                _brief_crash(random, progress, names),
                delay_seconds=after,
                disk_operations=tuple(random.randint(1, OPERATIONS_BACK_MAX) for _ in names),
            )
            for names in ([again] if random.random() < 0.8 else [])
        ),
    ]


def _lone_appends(
    random: Random,
    progress: float,
    stage: FaultStage,
    holder: str,
    others: Sequence[str],
    *,
    lag: float,
    end: float,
    away: float,
) -> Sequence[Fault]:
    """Let the servers reach only the holder for `lag` seconds; before that time is over all servers
    die, and the holder stays away."""
    return [
        *(
            Isolation(
                progress=progress,
                name=name,
                others=tuple(stage.servers),
                with_coordinator=False,
                seconds=lag,
            )
            for name in others
        ),
        replace(_brief_crash(random, progress, stage.servers), delay_seconds=end),
        replace(
            crash(random, progress, [holder]),
            delay_seconds=end,
            disk_operations=(0,),
            pause_seconds=(away,),
        ),
    ]


def outlived_tails(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """A replica that alone got appends is away while the others write on and owners change, so that
    it comes back to sessions that have known it as written off from their start. Once or twice."""
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        holder, *others = random.sample(stage.storages, len(stage.storages))
        lag = random.uniform(0.02, random.choice((0.1, 1.0)))
        end = random.uniform(0.0, lag)
        away = random.uniform(5.0, 40.0)
        faults += _lone_appends(random, moment, stage, holder, others, lag=lag, end=end, away=away)
        delays = sorted(end + away * random.random() for _ in range(random.randint(1, 4)))
        faults += [
            replace(_change_of_owner(random, moment, stage), delay_seconds=delay)
            for delay in delays
        ]
    return faults
