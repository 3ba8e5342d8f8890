"""Watches explanations of transactions: each statement on copies, times, sessions, authors and
refused appends is compared with what the run knows.

Owns what is known when an operator asks and when the answer comes. A copy that is said to be there
was on that disk, durably, at some time of the question; a time is that of a sync; an author is the
client that has sent the bytes. What is said to be unknown is not judged, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from waltz.client.transaction import PartitionLocalLock
from waltz.operators.authors import Author
from waltz.operators.explanation_shell import Copy, CopyStanding, Explanation
from waltz.operators.journals_shell import ReplicaTime
from waltz.sim.judges.checkers import Log
from waltz.sim.judges.durable_times import NARROW_MILLISECONDS, DurableTimes, RecordCopy
from waltz.sim.judges.history import FedRecord, History, SubmittedContext
from waltz.sim.judges.payload import Payload
from waltz.types import PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.report_protocol import RefusalEntry

LOCK_NAME: Final = "key"
"""The name of all locks of workloads."""

Held: TypeAlias = Mapping[str, FedRecord | None]
"""Per storage node the record of one transaction that is durable on its disk. Nodes whose disk was
harmed are missing."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an operator: the knowledge of that moment, and what was synced since."""

    partition_id: PartitionId
    transaction_id: TransactionId
    committed: TransactionId
    held: Held
    current: Collection[RecordCopy]
    synced: Collection[RecordCopy]


@dataclass(slots=True)
class ExplanationWatch:
    """See the module.

    held         returns the present copies of a transaction.
    committed    returns the last transaction that any server has known to be committed.
    has_old      whether some processes speak a version without names.
    """

    history: History
    times: DurableTimes
    held: Callable[[PartitionId, TransactionId], Held]
    committed: Callable[[PartitionId], TransactionId]
    has_old: bool = False
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Statements by kind."""
    _told: list[Explanation] = field(default_factory=list)

    def asked(
        self,
        partition_id: PartitionId,
        transaction_id: TransactionId,
        names: Collection[str],
        synced: Collection[RecordCopy],
    ) -> Question:
        """An operator asks now. `names`: all storage nodes; `synced` gets what is synced until the
        answer."""
        current = [self.times.current(name, partition_id, transaction_id) for name in names]
        return Question(
            partition_id,
            transaction_id,
            self.committed(partition_id),
            self.held(partition_id, transaction_id),
            [each for each in current if each is not None],
            synced,
        )

    def answered(self, question: Question, told: Explanation, machines: Mapping[str, str]) -> None:
        """The operator was told this. `machines`: the storage node of each replica ID."""
        self._told.append(told)
        committed = self.committed(question.partition_id)
        if told.high_water_mark is not None and told.high_water_mark > committed:
            self._blame(told, f"the mark {told.high_water_mark}; {committed} is committed")
        if told.is_committed is True and told.transaction_id > committed:
            self._blame(told, f"it is committed; {committed} is the last that is")
        if told.is_committed is False and told.transaction_id <= question.committed:
            self._blame(told, f"there is none; {question.committed} was committed before")
        self.counts[f"committed: {told.is_committed}"] += 1
        held = self.held(question.partition_id, question.transaction_id)
        for copy in told.copies:
            self._check_copy(question, told, machines[copy.replica_id], copy, held)
        spans = [
            self._check_time(question, told, machines[each.replica.replica_id], each)
            for each in told.times.replicas
        ]
        self._check_majority(told, [span for span in spans if span is not None])

    def judge(self, log: Log) -> list[str]:
        """Return all violations, given the log in the end."""
        sessions: dict[tuple[PartitionId, RequestId], set[SessionId]] = {}
        for told in self._told:
            records = log.get(told.partition_id, ())
            if told.is_committed:
                self._check_record(told, records)
            self._check_author(told)
            for each in () if told.refusals is None else told.refusals.refusals:
                self._check_refusal(told, each, records)
            if told.record is not None and told.is_committed:
                sessions.setdefault((told.partition_id, told.record.request_id), set()).update(
                    each.session_id for each in told.times.replicas if each.session_id is not None
                )
        self._check_sessions(log, sessions)
        return self.violations

    # At the time of the answer

    def _check_copy(
        self, question: Question, told: Explanation, name: str, copy: Copy, held: Held
    ) -> None:
        self.counts[f"copy: {copy.standing}"] += 1
        if name not in held or name not in question.held:
            return
        there = [question.held[name], held[name]]
        others = [
            each
            for each in question.synced
            if each[:3] == (name, question.partition_id, question.transaction_id)
        ]
        wanted = None if told.record is None else tuple(told.record.request_id)
        found = {*(tuple(each.request_id) for each in there if each is not None)}
        found |= {each.request_id for each in others}
        match copy.standing:
            case CopyStanding.SAME if wanted not in found:
                self._blame(told, f"{name} has it; it had {sorted(found)}")
            case CopyStanding.SAME:
                assert told.record is not None
                shown = FedRecord(question.transaction_id, *told.record[1:4])
                if not others and shown not in there:
                    self._blame(told, f"{name} has it; it has other bytes")
            case CopyStanding.DIFFERENT if not found - {wanted}:
                self._blame(told, f"{name} has another one; it had none")
            case CopyStanding.MISSING if None not in there and not others:
                self._blame(told, f"{name} does not have it; it did")

    def _check_time(
        self, question: Question, told: Explanation, name: str, each: ReplicaTime
    ) -> tuple[int, int] | None:
        """Check the interval of a replica; return the first and the last time that its copy may
        have become durable; None: it was never seen to."""
        place = (name, question.partition_id, question.transaction_id)
        copies = {copy for copy in question.current if copy.name == name}
        copies |= {copy for copy in question.synced if copy[:3] == place}
        times = self.times.times_of(copies)
        interval = each.interval
        if interval is None:
            self.counts["time: not recorded" if times else "time: not held"] += 1
        elif not times:
            self._blame(told, f"it became durable on {name} at {interval[:2]}; it never did")
        else:
            is_narrow = interval.not_after - interval.not_before <= NARROW_MILLISECONDS
            self.counts["time: narrow" if is_narrow else "time: wide"] += 1
            if not any(interval.not_before <= time <= interval.not_after for time in times):
                self._blame(
                    told,
                    f"it became durable on {name} at {interval[:2]}; it did at {sorted(times)}",
                )
        return (min(times), max(times)) if times else None

    def _check_majority(self, told: Explanation, spans: list[tuple[int, int]]) -> None:
        """Check the bounds: the copy that made the majority, each by its own node's clock, came
        between them."""
        needed = len(told.times.replicas) // 2 + 1
        low, high = told.times.not_before, told.times.not_after
        lows, highs = sorted(first for first, _ in spans), sorted(last for _, last in spans)
        if low is not None and len(spans) >= needed and highs[needed - 1] < low:
            self._blame(told, f"a majority had it after {low}; it did at {highs[needed - 1]}")
        if high is not None and (len(spans) < needed or lows[needed - 1] > high):
            self._blame(told, f"a majority had it before {high}; it did at {lows}")
        apart = told.times.apart_milliseconds
        if apart and (not spans or highs[-1] - lows[0] < apart):
            self._blame(told, f"copies are {apart} ms apart; they came at {spans}")

    # In the end

    def _check_record(self, told: Explanation, records: Collection[FedRecord]) -> None:
        there = [each for each in records if each.transaction_id == told.transaction_id]
        if told.record is not None and there != [FedRecord(*told.record[:4])]:
            self._blame(told, f"it is {tuple(told.record.request_id)}; the log has {there}")

    def _check_author(self, told: Explanation) -> None:
        author, sender = told.author, self._sender(told)
        if author is None or sender is None or told.record is None:
            self.counts["author: unknown"] += 1
            return
        if not author.is_recorded:
            self.counts["author: of now"] += 1
            return
        self.counts["author: told"] += 1
        name, instance = _name_of(sender), sender.instance
        machine = sender.client.partition("~")[0]
        may_be_nameless = not instance or self.has_old
        is_right = (
            author.client_id == told.record.request_id.client_id
            and author.name in ({name, ""} if may_be_nameless else {name})
            and author.instance in {instance, ""}
            and author.address in {machine, ""}
        )
        if not is_right:
            self._blame(told, f"it was written by {_shown(author)}; it was {instance or machine}")

    def _sender(self, told: Explanation) -> SubmittedContext | None:
        context = None if told.record is None else Payload.context_of(told.record.data)
        return None if context is None else self.history.submissions.get(context)

    def _check_refusal(
        self, told: Explanation, each: RefusalEntry, records: Collection[FedRecord]
    ) -> None:
        self.counts["refusal: exact" if each.is_exact else "refusal: estimate"] += 1
        loser = f"the append {tuple(each.request_id)}"
        if each.winner != told.transaction_id:
            self._blame(told, f"{loser} was refused for it; that was {each.winner}")
        if any(record.request_id == each.request_id for record in records):
            self._blame(told, f"{loser} was refused; it is in the log")
        found = self._refused(each.request_id)
        if found is None:
            self.counts["refusal: its client was not told"] += 1
            return
        attempt, estimate = found
        if estimate != each.winner:
            self._blame(told, f"{loser} was refused for it; its client was told {estimate}")
        wanted = {*attempt.write_locks, *attempt.read_locks}
        winner = next((r for r in records if r.transaction_id == each.winner), None)
        won = None if winner is None else Payload.decode(winner.data)
        if each.is_exact:
            wanted &= set() if won is None else {*won.keys_changed}
        if each.lock_hash not in {PartitionLocalLock(LOCK_NAME, key).hash for key in wanted}:
            exactly = " exactly" if each.is_exact else ""
            self._blame(
                told,
                f"{loser} was refused{exactly} for lock {each.lock_hash}; the locks that it"
                f" can have been are {sorted(wanted)}",
            )

    def _refused(self, request_id: RequestId) -> tuple[Payload, TransactionId] | None:
        """Return a refused attempt, and the winner that its client was told; None: its client was
        told nothing."""
        for submission in self.history.submissions.values():
            for refusal in submission.refusals:
                if refusal.request_id == request_id:
                    attempt = Payload.decode(submission.written[refusal.attempt - 1][1])
                    return None if attempt is None else (attempt, refusal.estimate)
        return None

    def _check_sessions(
        self, log: Log, sessions: Mapping[tuple[PartitionId, RequestId], Collection[SessionId]]
    ) -> None:
        """One session has given a transaction its ID, and none an earlier one than the session of
        a transaction before it."""
        for partition_id, records in log.items():
            newest = SessionId(-1)
            for record in records:
                told = sessions.get((partition_id, record.request_id), ())
                self.counts["session: told"] += len(told)
                if len(told) > 1 or (told and min(told) < newest):
                    self.violations.append(
                        f"explain: transaction {record.transaction_id} of partition {partition_id}"
                        f" is said to be of sessions {sorted(told)}, after one of {newest}"
                    )
                newest = max([newest, *told])

    def _blame(self, told: Explanation, text: str) -> None:
        self.violations.append(
            f"explain: transaction {told.transaction_id} of partition {told.partition_id}: said"
            f" {text}"
        )


def _name_of(sender: SubmittedContext) -> str:
    """Return the name that the client has told; empty: none."""
    return sender.instance.partition("#")[0]


def _shown(author: Author) -> str:
    return f"{author.name!r} ({author.instance}, {author.address}; {author.source})"
