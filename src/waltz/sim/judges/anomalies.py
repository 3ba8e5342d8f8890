"""Anomalies of a log, judged from what its users saw alone, with Jepsen's names for them; calls
that wait for the log and return too early, or never, have names of their own.

Owns no notion of a right log: each follower is compared with all others and with what the writers
were told, so a log that is wrong in the same way for its last reader is found as well. Source:
Jepsen, `jepsen.tests.kafka`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.sim.judges.payload import Payload
from waltz.types import NOTHING, PartitionId, TransactionId


def check_anomalies(history: History) -> list[str]:
    checks: Sequence[Callable[[History], list[str]]] = (
        polls, inconsistent_offsets, duplicates, lost_writes, aborted_reads, wrong_order,
        early_returns, endless_waits,
    )  # fmt: skip
    return [violation for check in checks for violation in check(history)]


def polls(history: History) -> list[str]:
    """Poll skip and non-monotonic poll: a follower is handed one ID after the other."""
    violations = []
    for follower, partition_id, feed in _feeds(history):
        for earlier, later in pairwise(feed):
            step = later.transaction_id - earlier.transaction_id
            if step == 1:
                continue
            name = "poll skip" if step > 1 else "non-monotonic poll"
            violations.append(
                f"{name}: {follower} was fed transaction {later.transaction_id} of partition"
                f" {partition_id} after {earlier.transaction_id}"
            )
    return violations


def inconsistent_offsets(history: History) -> list[str]:
    """One ID stands for one transaction, for every follower."""
    violations = []
    seen: dict[tuple[PartitionId, TransactionId], tuple[str, FedRecord]] = {}
    for follower, partition_id, feed in _feeds(history):
        for fed in feed:
            other, first = seen.setdefault((partition_id, fed.transaction_id), (follower, fed))
            if first != fed:
                violations.append(
                    f"inconsistent offset: transaction {fed.transaction_id} of partition"
                    f" {partition_id} is {tuple(first.request_id)} for {other} and"
                    f" {tuple(fed.request_id)} for {follower}"
                )
    return violations


def duplicates(history: History) -> list[str]:
    """A context is at one place in the log, for every follower."""
    violations = []
    places: dict[int, tuple[PartitionId, TransactionId]] = {}
    for follower, partition_id, feed in _feeds(history):
        for fed, context in _contexts(feed):
            place = (partition_id, fed.transaction_id)
            if places.setdefault(context, place) != place:
                violations.append(
                    f"duplicate: {follower} was fed context {context} as transaction"
                    f" {fed.transaction_id} of partition {partition_id}; it is transaction"
                    f" {places[context][1]} of partition {places[context][0]}"
                )
    return violations


def lost_writes(history: History) -> list[str]:
    """A client that was handed transactions beyond a committed context was handed that one, too."""
    violations = []
    places = _places(history)
    for context, submission in history.submissions.items():
        if not submission.has_ended(ContextVerdict.COMMITTED):
            continue
        if context not in places:
            violations.append(
                f"lost write: no follower was fed context {context}, which was reported committed"
            )
            continue
        partition_id, transaction_id = places[context]
        for follower, feeds in history.feeds.items():
            feed = feeds.get(partition_id, [])
            if len(feed) <= transaction_id:
                continue
            if Payload.context_of(feed[transaction_id].data) != context:
                violations.append(
                    f"lost write: {follower} was not fed context {context} as transaction"
                    f" {transaction_id} of partition {partition_id}"
                )
    return violations


def aborted_reads(history: History) -> list[str]:
    """No follower is fed a transaction whose writer was told that it is not in the log."""
    violations = []
    for follower, _, feed in _feeds(history):
        for fed, context in _contexts(feed):
            submission = history.submissions.get(context)
            if submission is not None and any(e.verdict.denies for e in submission.endings):
                violations.append(
                    f"aborted read: {follower} was fed context {context} as transaction"
                    f" {fed.transaction_id}; its writer was told that it is not in the log"
                )
    return violations


def wrong_order(history: History) -> list[str]:
    """A context that is submitted after another one was reported committed comes after it in the
    log."""
    violations = []
    places = _places(history)
    newest: dict[PartitionId, tuple[TransactionId, int]] = {}
    moments: list[tuple[int, bool, int]] = []
    for context in places:
        submission = history.submissions.get(context)
        if submission is None:
            continue
        moments.append((submission.moment, True, context))
        moments += [
            (ending.moment, False, context)
            for ending in submission.endings
            if ending.verdict is ContextVerdict.COMMITTED
        ]
    floors: dict[int, tuple[TransactionId, int]] = {}
    for _, is_submit, context in sorted(moments):
        partition_id, transaction_id = places[context]
        if is_submit:
            if partition_id in newest:
                floors[context] = newest[partition_id]
        elif partition_id not in newest or newest[partition_id][0] < transaction_id:
            newest[partition_id] = (transaction_id, context)
    for context, (floor, earlier) in floors.items():
        partition_id, transaction_id = places[context]
        if transaction_id <= floor:
            violations.append(
                f"wrong order: context {context} is transaction {transaction_id} of partition"
                f" {partition_id}; context {earlier}, reported committed before it was submitted,"
                f" is transaction {floor}"
            )
    return violations


def early_returns(history: History) -> list[str]:
    """A client that is told that all is applied has applied all that it is told of, and is told of
    all that it knew to be applied before: of what other processes have applied to a shared database
    it may not know yet."""
    violations = []
    for client, told, before, after in history.waits:
        for partition_id, mark in told.items():
            if after.get(partition_id, NOTHING) < mark:
                violations.append(
                    f"early return: {client} was told that transaction {mark} of partition"
                    f" {partition_id} is applied; the last one applied was"
                    f" {after.get(partition_id, NOTHING)}"
                )
            if mark < before.get(partition_id, NOTHING):
                violations.append(
                    f"stale mark: {client} was told that transaction {mark} of partition"
                    f" {partition_id} is the last one; it had applied {before[partition_id]} before"
                )
    return violations


def endless_waits(history: History) -> list[str]:
    """A client that asks is told once nothing is appended any more and no fault strikes."""
    return [
        f"endless wait: {client} was never told {waited_for}"
        for client, waited_for in history.endless
    ]


def _feeds(history: History) -> Iterator[tuple[str, PartitionId, list[FedRecord]]]:
    for follower, feeds in history.feeds.items():
        for partition_id, feed in feeds.items():
            yield follower, partition_id, feed


def _contexts(feed: Sequence[FedRecord]) -> Iterator[tuple[FedRecord, int]]:
    for fed in feed:
        context = Payload.context_of(fed.data)
        if context is not None:
            yield fed, context


def _places(history: History) -> dict[int, tuple[PartitionId, TransactionId]]:
    """Return the place of each context, as its first follower saw it."""
    places: dict[int, tuple[PartitionId, TransactionId]] = {}
    for _, partition_id, feed in _feeds(history):
        for fed, context in _contexts(feed):
            places.setdefault(context, (partition_id, fed.transaction_id))
    return places
