"""What must be true of every state that a power cut leaves of a storage directory.

Each state of a recording (`recorded_work.py`) is opened as a node opens it, looked at, worked with,
and opened again: a power cut is never damage and never an end. Some states are cut off again while
they are opened.

    python -m tests.storage.crash_states --states 200000
    python -m tests.storage.crash_states --seed 3 --state 217:1f
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proofs.crash_states import (
    CrashState,
    Image,
    RecordingDisk,
    Step,
    crash_image,
    crash_states,
    parse_crash_point,
)
from tests.storage.recorded_work import (
    PARTITIONS,
    Found,
    Node,
    Promise,
    Workload,
    drained,
    new_records,
    read_log,
    record,
    served_session,
)
from tests.storage.support import (
    t,
)
from waltz.errors import WaltzError
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.partition_replica import StoragePartition
from waltz.types import SessionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
)


def look(disk: SimulatedDisk, seed: object) -> list[Found]:
    """Open a directory as a node does and tell what each partition says; then work with it, cut the
    power and look again."""
    try:
        return go_on(Node(disk), disk, seed)
    except (WaltzError, OSError, AssertionError) as error:
        return [Found(problem=f"{type(error).__name__}: {error}")] * len(PARTITIONS)


def go_on(node: Node, disk: SimulatedDisk, seed: object) -> list[Found]:
    """The same with a node that is open. Raises AssertionError, WaltzError, OSError: it cannot."""
    found = [_look(partition) for partition in node.partitions]
    logs = [_continue(*pair) for pair in zip(node.partitions, found, strict=True)]
    infos = [partition.promises.info for partition in node.partitions]
    again = Node(disk.crash_clone(Random(str(seed))))
    for partition, log, info in zip(again.partitions, logs, infos, strict=True):
        _check_open(partition)
        _check(read_log(partition) == log, "what was added is gone after a restart")
        _check(
            partition.promises.info == info, f"{info} is {partition.promises.info} after a restart"
        )
    return found


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


def _check_open(partition: StoragePartition) -> None:
    _check(partition.damage is None, f"damage: {partition.damage}")
    _check(partition.writer.is_open, "not writable")


def _look(partition: StoragePartition) -> Found:
    info = partition.promises.info
    if not info.is_assigned:
        partition.assign()
    _check_open(partition)
    if not info.is_writable:
        partition.set_access(readable=True, writable=True)
    log = read_log(partition)
    held = partition.log.next_transaction_id - 1
    _check(info.local_low_water_mark <= held, f"{info}, but records only up to {held}")
    return Found(log, repr(info), served_session(partition))


def _continue(partition: StoragePartition, found: Found) -> bytes:
    """Start a session and append, in partition 0 into another segment; return the log then."""
    number, session = partition.partition_id, SessionId(found.session + 1)
    held = partition.log.next_transaction_id - 1
    mark = t(max(held, partition.promises.info.low_water_mark))
    sizes = (5,) if number else (900, 900, 700, 5)
    records = new_records(held + 1, sizes, 1_000_000, partition=number)
    requests = [
        SetLowWaterMarkRequest(session, 1, number, mark, offline=False),
        AppendRecordsRequest(session, 2, number, records, False),
    ]
    partition.announce(session)
    for answer in drained(partition, requests):
        _check(isinstance(answer, SuccessResponse), f"refused: {answer}")
    return found.log + bytes(records.block)


@dataclass(frozen=True, slots=True)
class Violation:
    seed: object
    recipe: str
    text: str

    def __str__(self) -> str:
        return f"--seed {self.seed} --state {self.recipe}: {self.text}"


@dataclass(slots=True)
class Tally:
    """What came out of some states."""

    judged: int = 0
    """States with the promises of their moment."""
    digests: set[bytes] = field(default_factory=set)
    """Of the states that were opened."""
    violations: list[Violation] = field(default_factory=list)


OPENINGS_CUT = 8
"""While every so many-th state is opened, the power goes again."""

VIOLATIONS_MAX = 20
"""Found so many in one workload, its other states are left alone."""


def judge(
    seed: object,
    workload: Workload,
    *,
    states_per_step: int,
    violations_max: int = VIOLATIONS_MAX,
) -> Tally:
    """Open the states of `workload`, so many for each of its steps at most."""
    tally = Tally()
    looks: dict[bytes, list[Found]] = {}

    def judge_one(state: CrashState, promises: Sequence[Promise], recipe: str) -> bool:
        """Return whether nobody has seen the state before."""
        is_new = state.digest not in looks
        if is_new:
            looks[state.digest] = look(state.image.disk(), state.digest)
            tally.digests.add(state.digest)
        tally.judged += 1
        for number, (promise, found) in enumerate(zip(promises, looks[state.digest], strict=True)):
            if breach := promise.breach(found):
                text = f"partition {number}: {breach}"
                tally.violations.append(Violation(seed, recipe, text))
        return is_new

    states = crash_states(
        workload.start, workload.trace, states_per_step=states_per_step, seed=seed
    )
    for state in states:
        if len(tally.violations) >= violations_max:
            break
        promises = workload.promised(state.point.steps)
        if judge_one(state, promises, str(state.point)) and len(looks) % OPENINGS_CUT == 0:
            start, trace = _opening(state.image)
            for again in crash_states(start, trace, states_per_step=4, seed=state.point):
                judge_one(again, promises, f"{state.point}/{again.point}")
    return tally


def _opening(image: Image) -> tuple[Image, Sequence[Step]]:
    """The trace of opening a state, as far as it goes."""
    recording = RecordingDisk(image.disk())
    try:
        Node(recording)
    except (WaltzError, OSError):
        pass
    return recording.start, recording.trace


def judge_recipe(seed: object, recipe: str) -> list[str]:
    """Make the one state again that `recipe` names, and return what does not hold there."""
    workload = record(seed)
    points = [parse_crash_point(text) for text in recipe.split("/")]
    image = crash_image(workload.start, workload.trace, points[0])
    for point in points[1:]:
        image = crash_image(*_opening(image), point)
    promises = workload.promised(points[0].steps)
    breaches = [
        promise.breach(found)
        for promise, found in zip(promises, look(image.disk(), image.digest), strict=True)
    ]
    return [f"partition {number}: {text}" for number, text in enumerate(breaches) if text]


# The command


def judge_seed(seed: int, states_per_step: int) -> Tally:
    return judge(seed, record(seed), states_per_step=states_per_step)


def tallies(first: int, states_per_step: int, jobs: int) -> Iterator[Tally]:
    """Judge one seed after the other, `jobs` at a time, without end."""
    seeds = itertools.count(first)
    if jobs == 1:
        yield from (judge_seed(seed, states_per_step) for seed in seeds)
    pool = ProcessPoolExecutor(jobs)
    try:
        waiting: set[Future[Tally]] = set()
        while True:
            while len(waiting) < jobs:
                waiting.add(pool.submit(judge_seed, next(seeds), states_per_step))
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Open every state that a power cut can leave.")
    parser.add_argument("--states", type=int, default=200_000, help="stop after so many distinct")
    parser.add_argument("--states-per-step", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="the first one, or that of --state")
    parser.add_argument("--state", help="judge this one alone, as a violation names it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    if options.state:
        breaches = judge_recipe(options.seed, options.state)
        console.print("\n".join(breaches) or "nothing is wrong with this state", markup=False)
        return int(bool(breaches))
    started = time.monotonic()
    whole = Tally()
    columns = (TextColumn("crash states"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=options.states)
        for tally in tallies(options.seed, options.states_per_step, options.jobs):
            whole.judged += tally.judged
            whole.digests |= tally.digests
            whole.violations += tally.violations
            progress.update(task, completed=min(len(whole.digests), options.states))
            if whole.violations or len(whole.digests) >= options.states:
                break
    for violation in whole.violations[:VIOLATIONS_MAX]:
        console.print(f"python -m tests.storage.crash_states {violation}", markup=False)
    console.print(
        f"{len(whole.digests):,} distinct states, judged {whole.judged:,} times, in"
        f" {time.monotonic() - started:,.0f} s: {len(whole.violations):,} violations"
    )
    return int(bool(whole.violations))


if __name__ == "__main__":
    sys.exit(main())
