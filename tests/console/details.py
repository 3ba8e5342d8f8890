"""Answers to what single pages inquire: a transaction's life, locks, durations, sessions, sinks."""

from __future__ import annotations

from typing import Any

from tests.console.states import node_id
from waltz.console.inquiries import (
    DurationsOf,
    DurationsTold,
    HottestLocksOf,
    LifeOf,
    LocksTold,
    PipelinesOf,
    PipelinesTold,
    PipelineTold,
    RequestOf,
    SessionsOf,
    SessionsTold,
    SessionTold,
    SinksOf,
    SinksTold,
    SinkTold,
)
from waltz.console.transaction_life import Life, life_of
from waltz.errors import UnavailableError
from waltz.operators.authors import Author
from waltz.operators.explanation_shell import Copy, CopyStanding, Explanation
from waltz.operators.hot_locks_shell import HottestLock, HottestLocks
from waltz.operators.journals_shell import ReplicaTime, TransactionTimes
from waltz.operators.replicas_shell import Replica
from waltz.record import Record
from waltz.types import ClientId, Generation, PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.journal_facts import DurableInterval
from waltz.wire.report_protocol import (
    DurationBucket,
    HotLock,
    RefusalEntry,
    RefusalsKept,
    RefusalsReport,
    StageDurations,
)

WALL = 1_790_000_000_000
REQUEST_ID = RequestId(ClientId(12), Generation(3), PartitionId(0), 4711)


def refusals(number: int = 3) -> tuple[RefusalEntry, ...]:
    return tuple(
        RefusalEntry(
            RequestId(ClientId(23), Generation(3), PartitionId(0), each), 0x1234567 + each % 2,
            TransactionId(17 + each), each % 2 == 0, 400 + 60_000 * each
        )
        for each in range(number)
    )  # fmt: skip


def locks_told() -> LocksTold:
    return LocksTold(
        RefusalsKept(412, 412, 1_860_000),
        (
            HotLock(0x1234567, 398, 0, TransactionId(91_822), 400),
            HotLock(-5, 14, 3, TransactionId(91_640), 12_000),
        ),
        refusals(5),
    )


def hottest_told(partition_count: int = 2) -> HottestLocks:
    """Twenty locks of all partitions but the last two, which could not be asked."""
    kept = RefusalsKept(40_412, 10_000, 1_860_000)
    asked = [PartitionId(each) for each in range(max(1, partition_count - 2))]
    locks = tuple(
        HottestLock(
            asked[7 * each % len(asked)],
            kept,
            HotLock(
                0x1234567 + each, 4_980 // (each + 1), each, TransactionId(91_822 + each),
                400 + 9_000 * each,
            ),
        )
        for each in range(20)
    )  # fmt: skip
    unasked = {
        PartitionId(each): "server 10.0.0.9:55280 does not have the partition now"
        for each in range(len(asked), partition_count)
    }
    return HottestLocks(locks, dict.fromkeys(asked, kept), unasked)


def stage(name: str, *counts: int) -> StageDurations:
    bounds = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, -1)
    filled = [*counts, *[0] * (len(bounds) - len(counts))]
    buckets = tuple(DurationBucket(*each) for each in zip(bounds, filled, strict=True))
    return StageDurations(name, 1000 * sum(counts), buckets)


def durations_told() -> DurationsTold:
    return DurationsTold(
        (stage("wait", 900, 90, 10), stage("store", 0, 20, 500, 300, 170, 10),
         stage("feed", 990, 10)),
        (stage("wait", 90, 9, 1), stage("store", 0, 2, 50, 30, 17, 0, 0, 1), stage("feed", 100)),
        58.0,
    )  # fmt: skip


def sessions_told() -> SessionsTold:
    return SessionsTold(
        tuple(SessionTold(7 - each, WALL - 3_600_000 * each, 41 - 10 * each, 3 - each % 2)
              for each in range(4)),
        3,
        {node_id(2): "connection refused"},
    )  # fmt: skip


def sinks_told() -> SinksTold:
    return SinksTold(
        (
            SinkTold(
                "3f0c-orders", 41, 4, {each: 90 + each for each in range(12)}, None, 3.0, 60.0
            ),
            SinkTold("old", 2, 1, {0: -1}, None, None, 60.0),
            SinkTold("blocked", 5, 2, {0: 7}, "lock account:7 is held by transaction 9", 9.0, 60.0),
        )
    )


def explanation(
    partition_id: int = 0, transaction_id: int = 17, data: bytes = b"a transaction", **changes: Any
) -> Explanation:
    """A transaction of which everything is known: three copies, of which one is not reached."""
    number, last = PartitionId(partition_id), TransactionId(transaction_id)
    replicas = [Replica(number, node_id(each), 7201 + 2 * each, True, None) for each in range(3)]
    times = TransactionTimes(
        last,
        tuple(
            ReplicaTime(each, DurableInterval(WALL, WALL + 2), SessionId(7), "")
            if index < 2
            else ReplicaTime(each, None, None, "connection refused")
            for index, each in enumerate(replicas)
        ),
        WALL, WALL + 2, 0,
    )  # fmt: skip
    found: dict[str, Any] = {
        "partition_id": number,
        "transaction_id": last,
        "high_water_mark": TransactionId(transaction_id + 24),
        "mark_trouble": "",
        "record": Record(last, REQUEST_ID, -7, data, 0),
        "copies": (
            Copy(node_id(0), CopyStanding.SAME, ""),
            Copy(node_id(1), CopyStanding.SAME, ""),
            Copy(node_id(2), CopyStanding.UNKNOWN, "connection refused"),
        ),
        "times": times,
        "author": Author(
            ClientId(12), "orders", "orders-7", "app.py 0.1.0", "", "10.0.0.5:41234",
            "server 10.0.0.9:55280 has it mounted now",
        ),
        "author_trouble": "",
        "refusals": RefusalsReport(0, RefusalsKept(412, 412, 9), refusals()),
        "refusals_trouble": "",
    }  # fmt: skip
    return Explanation(**(found | changes))


def life(partition_id: int = 0, transaction_id: int = 17, data: bytes = b"a transaction") -> Life:
    return life_of(explanation(partition_id, transaction_id, data))


def absent(partition_id: int, transaction_id: int) -> Explanation:
    """A transaction that there is none of: the log ends before it."""
    copies = tuple(
        Copy(node_id(each), CopyStanding.MISSING, "its log ends before") for each in range(3)
    )
    return explanation(
        partition_id,
        transaction_id,
        high_water_mark=TransactionId(41),
        record=None,
        copies=copies,
        author=None,
        author_trouble="no record, so no author",
    )


def hostile_details(text: str, data: bytes) -> dict[Any, Any]:
    """Answers to all inquiries with `text` wherever a process or a client may say anything."""
    author = Author(ClientId(12), text, text, text, text, text, text)
    copies = tuple(Copy(node_id(each), standing, text) for each, standing in enumerate(
        (CopyStanding.DIFFERENT, CopyStanding.REFUSED, CopyStanding.UNKNOWN)
    ))  # fmt: skip
    silent = TransactionTimes(
        TransactionId(1),
        tuple(
            ReplicaTime(Replica(PartitionId(0), node_id(each), 7201, True, None), None, None, text)
            for each in range(3)
        ),
        None, None, 0,
    )  # fmt: skip
    found = explanation(
        0, 1, data, author=author, copies=copies, times=silent, mark_trouble=text,
        high_water_mark=None, refusals=None, refusals_trouble=text,
    )  # fmt: skip
    return {
        HottestLocksOf: HottestLocks(
            hottest_told().locks[:1], hottest_told().asked, {PartitionId(1): text}
        ),
        LifeOf: life_of(found),
        SessionsOf: SessionsTold((), 3, {node_id(0): text, text: text}),
        DurationsOf: DurationsTold((stage(text, 1, 2, 3),)),
        RequestOf: UnavailableError(text),
        SinksOf: SinksTold((
            SinkTold(text, 1, 1, {0: 1}, text, 1.0, 2.0),
            SinkTold(text, -1, 0, {}, None, None, 2.0, text),
        )),
        PipelinesOf: PipelinesTold((
            PipelineTold(text, text, text, ((0, 1, 2),)),
            PipelineTold(text, text, text, problem=text),
        )),
    }  # fmt: skip
