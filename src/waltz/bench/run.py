"""One workload against one cluster: warm-up, rounds, and the figures of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from waltz.bench.calibration import Calibration
from waltz.bench.commit_times import committed_at, read_commits
from waltz.bench.processes import processor_by_role, proportional_bytes, resident_bytes
from waltz.bench.readers import Access, Followed, ReadPart
from waltz.bench.results import Result, Round, Samples, joined
from waltz.bench.trial_cluster import BenchTarget
from waltz.bench.workload import Workload
from waltz.bench.workload_processes import Worker, answers, tell_all, workers
from waltz.bench.writers import ClientRound
from waltz.errors import WaltzError

AHEAD_SECONDS: Final = 0.1
"""Seconds between the message to the writers and their start, so that all start at once."""

CAUGHT_UP_SECONDS: Final = 0.1
"""A consumer that is closer to the writer than that has no backlog any more."""


class Watcher(Protocol):
    """Is shown the progress of a run."""

    def begin(self, text: str) -> None: ...
    def tick(self, transactions: int) -> None: ...


def run(
    workload: Workload, target: BenchTarget, calibration: Calibration, watcher: Watcher
) -> Result:
    """Do the workload. Raises WaltzError: a client failed, or something did not arrive."""
    if workload.verb == "idle":
        rounds = _idle(workload, target, watcher)
    elif workload.is_writing:
        rounds = _write(workload, target, watcher)
    else:
        rounds = _read(workload, target, watcher)
    return Result(workload, calibration, tuple(rounds))


def _idle(workload: Workload, target: BenchTarget, watcher: Watcher) -> list[Round]:
    watcher.begin("idle")
    time.sleep(workload.duration_seconds)
    return [Round(0, workload.duration_seconds, memory=_memory(target))]


def _memory(target: BenchTarget) -> dict[str, int]:
    """Return bytes of the largest process of each role."""
    found: dict[str, int] = {}
    for pid, role in target.pids.items():
        for name, size in (
            (role, resident_bytes(pid)),
            (f"{role} (PSS)", proportional_bytes(pid)),
        ):
            found[name] = max(found.get(name, 0), size)
    return found


def _write(workload: Workload, target: BenchTarget, watcher: Watcher) -> list[Round]:
    access: Access = (target.cluster, target.tls)
    rounds = []
    with (
        workers("writer", workload.clients, workload, access) as writers,
        workers("consumer", workload.consumers, workload, access) as consumers,
    ):
        tick = _ticker(writers, watcher)
        watcher.begin("connecting")
        client_ids = frozenset(tell_all(writers, "begin", tick=tick))
        if workload.warm_up_seconds:
            watcher.begin("warm-up")
            tell_all(
                writers, "write", tick=tick,
                start=_soon(), seconds=workload.warm_up_seconds, is_counted=False,
            )  # fmt: skip
        for number in range(workload.rounds):
            watcher.begin(f"round {number + 1} of {workload.rounds}")
            tell_all(consumers, "prepare", tick=tick, writers=client_ids)
            start, before = _soon(), processor_by_role(target.pids)
            for consumer in consumers:
                consumer.tell("follow", start=start)
            written: list[ClientRound] = tell_all(
                writers, "write", tick=tick,
                start=start, seconds=workload.duration_seconds, is_counted=True,
            )  # fmt: skip
            answers(consumers, tick=tick)
            total = sum(each.transactions for each in written)
            followed: list[Followed] = tell_all(consumers, "collect", tick=tick, count=total)
            after = processor_by_role(target.pids)
            used = {role: after[role] - before[role] for role in after}
            rounds.append(
                written_round(
                    written, followed, used, _memory(target),
                    commits=None if target.commits is None else read_commits(target.commits),
                    is_late=workload.consumers_after_seconds > 0,
                )
            )  # fmt: skip
    return rounds


def _read(workload: Workload, target: BenchTarget, watcher: Watcher) -> list[Round]:
    access: Access = (target.cluster, target.tls)
    with workers("filler", 1, workload, access) as fillers:
        watcher.begin(f"writing {workload.prefill:,} transactions")
        tell_all(fillers, "fill", tick=_ticker(fillers, watcher))
    rounds = []
    with workers("reader", workload.clients, workload, access) as readers:
        tick = _ticker(readers, watcher)
        if workload.warm_up_seconds:
            watcher.begin("warm-up")
            tell_all(readers, "read", tick=tick)
        for number in range(workload.rounds):
            watcher.begin(f"round {number + 1} of {workload.rounds}")
            before = processor_by_role(target.pids)
            parts: list[ReadPart] = tell_all(readers, "read", tick=tick)
            after = processor_by_role(target.pids)
            used = {role: after[role] - before[role] for role in after}
            used["client"] = sum(each.processor_seconds for each in parts)
            rounds.append(
                Round(
                    sum(each.transactions for each in parts),
                    max(each.seconds for each in parts),
                    processor=used,
                    memory=_memory(target),
                )
            )
    return rounds


def _soon() -> int:
    return time.monotonic_ns() + int(AHEAD_SECONDS * 1e9)


def _ticker(told: Sequence[Worker], watcher: Watcher) -> Callable[[], None]:
    return lambda: watcher.tick(sum(worker.sent.value for worker in told))


def written_round(
    written: Sequence[ClientRound],
    followed: Sequence[Followed],
    processor: dict[str, float],
    memory: dict[str, int],
    *,
    commits: NDArray[np.int64] | None = None,
    is_late: bool,
) -> Round:
    """Return the round that writers and consumers saw; `commits`: the server's notes, if any;
    `is_late`: the consumers started late.

    Raises WaltzError: nothing was written, or a consumer got a transaction that was not written, or
    that the server has not noted.
    """
    total = sum(each.transactions for each in written)
    if not total:
        raise WaltzError("no transaction was written in a round; give a longer round (--seconds)")
    seconds = (max(int(each.applied.max()) for each in written) - written[0].start) / 1e9
    processor = dict(processor)
    processor["client"] = sum(each.processor_seconds for each in written)
    tails, lags, from_commits, drained = [], [], [], []
    if followed:
        processor["consumer"] = sum(each.processor_seconds for each in followed)
        for each in followed:
            intended, applied = _as_written(each, written)
            tails.append(Samples(each.applied - intended))
            lags.append(Samples(each.applied - applied))
            if commits is not None:
                committed = committed_at(commits, each.partition_ids, each.transaction_ids)
                from_commits.append(Samples(each.applied - committed))
            if is_late:
                drained.append(drain_seconds(each, applied))
    return Round(
        total,
        seconds,
        latency=joined([Samples(each.applied - each.intended, each.counts) for each in written]),
        tail=joined(tails) if tails else None,
        lag=joined(lags) if lags else None,
        from_commit=joined(from_commits) if from_commits else None,
        drain_seconds=max(drained) if drained else None,
        refused=sum(each.refused for each in written),
        processor=processor,
        memory=memory,
    )


def _as_written(
    followed: Followed, written: Sequence[ClientRound]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when each that a consumer was handed was due, and when it was applied at its writer.

    Raises WaltzError: they are not those that were written, each once.
    """
    intended = np.zeros(len(followed.headers), np.int64)
    applied = np.zeros(len(followed.headers), np.int64)
    for each in written:
        places = np.flatnonzero(followed.client_ids == each.client_id)
        headers = followed.headers[places]
        if not np.array_equal(np.sort(headers), np.arange(each.transactions)):
            raise WaltzError(
                f"a consumer got {len(headers)} transactions of client {each.client_id}; expected"
                f" each of the {each.transactions} that the client wrote, once"
            )
        by_number = (
            (each.intended, each.applied)
            if each.counts is None
            else (np.repeat(each.intended, each.counts), np.repeat(each.applied, each.counts))
        )
        intended[places], applied[places] = by_number[0][headers], by_number[1][headers]
    return intended, applied


def drain_seconds(followed: Followed, applied: NDArray[np.int64]) -> float:
    """Return how long after its coming a consumer was close to the writer for the first time."""
    close = followed.applied - applied <= CAUGHT_UP_SECONDS * 1e9
    if not close.any():
        return float(followed.applied.max() - followed.since) / 1e9
    return max(0.0, float(followed.applied[int(np.argmax(close))] - followed.since) / 1e9)
