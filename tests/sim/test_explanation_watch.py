"""The watch finds what is not so in explanations, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import pytest

from tests.storage.support import DIRECTORY
from waltz.client.transaction import PartitionLocalLock
from waltz.operators.authors import Author
from waltz.operators.explanation_shell import Copy, CopyStanding, Explanation
from waltz.operators.journals_shell import ReplicaTime, TransactionTimes
from waltz.operators.replicas_shell import Replica
from waltz.record import NewRecord, Record, pack_records, request_id_bytes
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.judges.explanation_watch import ExplanationWatch
from waltz.sim.judges.history import FedRecord, History, LockRefusal
from waltz.sim.judges.payload import Payload
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire.journal_facts import DurableInterval
from waltz.wire.report_protocol import RefusalEntry, RefusalsKept, RefusalsReport

P = PartitionId(0)
T = TransactionId(0)
NODES = ("a", "b", "c")
MACHINES: dict[str, str] = {ReplicaId(name): name for name in NODES}
WRITTEN = RequestId(ClientId(7), Generation(1), P, 1)
LOSER = RequestId(ClientId(8), Generation(1), P, 1)
PATH = f"{DIRECTORY}/0/{0:019d}.seg"
SYNCED = 1_000


def payload(context: int, *locks: int) -> bytes:
    return Payload(context, 1, write_locks=locks).encode()


LOG = {P: [FedRecord(T, WRITTEN, 3, payload(1, 5))]}
(RECORD,) = LOG[P]


class Run:
    """One transaction of `client-0`, with lock 5, that nodes a and b have; for it another one, of
    `client-1`, was refused."""

    def __init__(self) -> None:
        history = History()
        self.times = DurableTimes()
        self.held: dict[str, FedRecord | None] = {"a": RECORD, "b": RECORD, "c": None}
        self.mark = T
        self.watch = ExplanationWatch(
            history, self.times, lambda *_: {**self.held}, lambda _: self.mark
        )
        for name, context in (("client-0", 1), ("client-1", 2)):
            history.submit(name, P, f"{name}#1")
            history.submissions[context].written.append((3, payload(context, 5, 6)))
        refusal = LockRefusal(TransactionId(-1), T, LOSER, 1)
        history.submissions[2].refusals.append(refusal)
        for name in ("a", "b"):
            self.sync(name)

    def sync(self, name: str, at: int = SYNCED) -> None:
        self.times.synced(name, PATH, bytes(128), at - 10)
        block = pack_records(
            T, [NewRecord(request_id_bytes(WRITTEN), 3, RECORD.data, crc32(RECORD.data))]
        ).block
        self.times.synced(name, PATH, bytes(128) + bytes(block), at)

    def told(self, change: Callable[[Explanation], Explanation] = lambda told: told) -> list[str]:
        """Return what is wrong with an explanation that is right but for this change."""
        with self.times.looking() as synced:
            question = self.watch.asked(P, T, NODES, synced)
            self.watch.answered(question, change(RIGHT), MACHINES)
        return self.watch.judge(LOG)


def time_of(name: str, interval: tuple[int, int] | None, session: int | None = 4) -> ReplicaTime:
    return ReplicaTime(
        Replica(P, ReplicaId(name), 1, True, None),
        None if interval is None else DurableInterval(*interval),
        None if session is None else SessionId(session),
        "",
    )


RIGHT = Explanation(
    P,
    T,
    T,
    "",
    Record(T, WRITTEN, 3, RECORD.data, crc32(RECORD.data)),
    (
        Copy(ReplicaId("a"), CopyStanding.SAME, ""),
        Copy(ReplicaId("b"), CopyStanding.SAME, ""),
        Copy(ReplicaId("c"), CopyStanding.MISSING, ""),
    ),
    TransactionTimes(
        T,
        (
            time_of("a", (SYNCED - 5, SYNCED)),
            time_of("b", (SYNCED, SYNCED + 3_000)),
            time_of("c", None, None),
        ),
        SYNCED - 5,
        SYNCED + 3_000,
        0,
    ),
    Author(ClientId(7), "client-0", "client-0#1", "", "", "client-0", ""),
    "",
    RefusalsReport(
        0,
        RefusalsKept(1, 1, 0),
        (RefusalEntry(LOSER, PartitionLocalLock("key", 5).hash, T, True, 0),),
    ),
    "",
)


def test_what_is_so_is_right_and_counted() -> None:
    run = Run()
    assert run.told() == []
    assert run.watch.counts == Counter(
        {
            "committed: True": 1, "copy: same": 2, "copy: missing": 1, "time: narrow": 1,
            "time: wide": 1, "time: not held": 1, "author: told": 1, "refusal: exact": 1,
            "session: told": 1,
        }
    )  # fmt: skip


def copies(*standings: CopyStanding) -> Callable[[Explanation], Explanation]:
    found = tuple(
        Copy(ReplicaId(name), each, "") for name, each in zip(NODES, standings, strict=True)
    )
    return lambda told: replace(told, copies=found)


def times(*replicas: ReplicaTime, **more: int) -> Callable[[Explanation], Explanation]:
    def change(told: Explanation) -> Explanation:
        found = replace(told.times, **more)  # type: ignore[arg-type]
        return replace(told, times=replace(found, replicas=replicas) if replicas else found)

    return change


def author(**more: str) -> Callable[[Explanation], Explanation]:
    def change(told: Explanation) -> Explanation:
        assert told.author is not None
        return replace(told, author=replace(told.author, **more))  # type: ignore[arg-type]

    return change


def refusal(**more: object) -> Callable[[Explanation], Explanation]:
    def change(told: Explanation) -> Explanation:
        assert told.refusals is not None
        (only,) = told.refusals.refusals
        entries = (replace(only, **more),)  # type: ignore[arg-type]
        return replace(told, refusals=replace(told.refusals, refusals=entries))

    return change


def as_mark(mark: int | None) -> Callable[[Explanation], Explanation]:
    found = None if mark is None else TransactionId(mark)
    return lambda told: replace(told, high_water_mark=found)


SAME, MISSING, DIFFERENT = CopyStanding.SAME, CopyStanding.MISSING, CopyStanding.DIFFERENT
OTHER_LOCK = PartitionLocalLock("key", 6).hash

WRONG = {
    "a mark that nobody has": (as_mark(1), "the mark 1; 0 is committed"),
    "a copy that is not there": (copies(SAME, SAME, SAME), "c has it; it had []"),
    "a copy that is": (copies(SAME, MISSING, MISSING), "b does not have it; it did"),
    "another copy": (copies(DIFFERENT, SAME, MISSING), "a has another one; it had none"),
    "other bytes": (
        lambda told: replace(told, record=told.record._replace(data=b"?")),
        "a has it; it has other bytes",
    ),
    "a time before": (
        times(time_of("a", (SYNCED - 9, SYNCED - 1)), time_of("b", None), time_of("c", None)),
        f"it became durable on a at ({SYNCED - 9}, {SYNCED - 1}); it did at [{SYNCED}]",
    ),
    "a time of nothing": (
        times(time_of("c", (1, 2)), time_of("b", None), time_of("a", None)),
        "it became durable on c at (1, 2); it never did",
    ),
    "a majority too late": (times(not_before=SYNCED + 1), f"after {SYNCED + 1}"),
    "a majority too early": (times(not_after=SYNCED - 1), f"before {SYNCED - 1}"),
    "clocks that agree": (times(apart_milliseconds=1), "copies are 1 ms apart"),
    "two sessions": (
        times(time_of("a", None, 4), time_of("b", None, 5), time_of("c", None, None)),
        "is said to be of sessions [4, 5]",
    ),
    "another author": (author(name="client-1"), "written by 'client-1'"),
    "no name": (author(name=""), "written by ''"),
    "another instance": (author(instance="client-0#2"), "client-0#2"),
    "another machine": (author(address="client-1"), "it was client-0#1"),
    "another winner": (refusal(winner=TransactionId(1)), "that was 1"),
    "a lock that it did not write": (refusal(lock_hash=OTHER_LOCK), "refused exactly for lock"),
    "a lock that was not asked for": (refusal(lock_hash=1, is_exact=False), "refused for lock 1"),
    "a loser that is in the log": (refusal(request_id=WRITTEN), "it is in the log"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_so_is_told(name: str) -> None:
    change, text = WRONG[name]
    found = Run().told(change)
    assert any(text in each for each in found), found
    assert all(each.startswith("explain: transaction 0 of partition 0") for each in found)


def test_an_estimate_may_be_of_any_lock_that_was_asked_for() -> None:
    assert Run().told(refusal(lock_hash=OTHER_LOCK, is_exact=False)) == []


def test_what_is_said_of_now_only_and_what_is_not_said_is_not_blamed() -> None:
    run = Run()
    assert run.told(lambda told: replace(told, author=None)) == []
    assert run.watch.counts["author: unknown"] == 1
    run = Run()
    stranger = Author(ClientId(7), "stranger", "", "", "", "", "", is_recorded=False)
    assert run.told(lambda told: replace(told, author=stranger)) == []
    assert run.watch.counts["author: of now"] == 1


def test_there_is_none_only_if_none_was_committed_when_it_was_asked() -> None:
    run = Run()
    none = as_mark(-1), copies(MISSING, MISSING, MISSING)

    def absent(told: Explanation) -> Explanation:
        return replace(none[1](none[0](told)), record=None, author=None, times=NO_TIMES)

    assert any("there is none; 0 was committed before" in each for each in run.told(absent))
    early = Run()
    early.mark = TransactionId(-1)
    early.held = dict.fromkeys(NODES)
    assert not any("there is none" in each for each in early.told(absent))


NO_TIMES = TransactionTimes(T, (), None, None, 0)


def test_what_becomes_durable_meanwhile_may_be_told_either_way() -> None:
    for standing in (SAME, MISSING):
        run = Run()
        with run.times.looking() as synced:
            question = run.watch.asked(P, T, NODES, synced)
            run.sync("c", SYNCED + 50)
            told = copies(SAME, SAME, standing)(RIGHT)
            if standing is SAME:
                replicas = (*told.times.replicas[:2], time_of("c", (SYNCED, SYNCED + 60)))
                told = times(*replicas)(told)
            run.watch.answered(question, told, MACHINES)
        assert run.watch.judge(LOG) == []


def test_a_disk_that_was_harmed_is_not_judged() -> None:
    run = Run()
    del run.held["c"]
    assert run.told(copies(SAME, SAME, SAME)) == []


def test_old_processes_do_not_know_names() -> None:
    run = Run()
    run.watch.has_old = True
    assert run.told(author(name="", instance="")) == []
    assert len(run.told(author(name="client-1"))) == 1
