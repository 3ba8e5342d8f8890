"""Report which replicas of a partition take part now, and whether the partition takes appends.

Owns what each replica has said last and when, and what follows from that. Pure. Nothing is assumed:
a replica counts only by its own word, and only while that word is recent; what nobody has said is
unknown. Status, health and metrics are all made from these reports, and from nothing in the
coordinator: the metadata says who took part when the store session opened, not who does now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from waltz.errors import RemoteStorageError, WaltzError
from waltz.majority import majority
from waltz.store.messages import condition_in
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import AppendToReplica, AskCondition, Condition, ReplicaRequest
from waltz.types import NO_SESSION, NOTHING, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import Standing
from waltz.wire.storage_protocol import ReplicaStateResponse, StorageMessage, SuccessResponse


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """`takes_appends` is None where nobody can say; `age_seconds`, of the replica's last word, is
    None where it has said nothing; `text` says what else an operator should know."""

    replica_id: ReplicaId
    standing: Standing
    takes_appends: bool | None
    age_seconds: float | None
    text: str


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A partition's store as its server sees it. `replicas` are all that the server deals with; of
    these a majority of `members` has to take an append. `obstacle` is why no session is open."""

    session_id: SessionId
    high_water_mark: TransactionId | None
    obstacle: str | None
    members: tuple[ReplicaId, ...]
    replicas: tuple[ReplicaReport, ...]

    @property
    def is_writable(self) -> bool | None:
        """Whether an append would be committed; None: nobody can say."""
        if self.obstacle is not None:
            return False
        counted = [each for each in self.replicas if each.replica_id in self.members]
        needed = majority(len(self.members))
        taking = sum(each.takes_appends is True for each in counted)
        unsure = sum(each.takes_appends is None for each in counted)
        if taking >= needed:
            return True
        return None if taking + unsure >= needed else False

    @property
    def reason(self) -> str | None:
        """Why appends are not taken, or why nobody can say whether they are; None if they are."""
        writable = self.is_writable
        if writable:
            return None
        if self.obstacle is not None:
            return self.obstacle
        found = [each for each in self.replicas if each.replica_id in self.members]
        taking = sum(each.takes_appends is True for each in found)
        verb = "are known to take" if writable is None else "take"
        others = "; ".join(
            f"{each.replica_id} {each.text}" for each in found if not each.takes_appends
        )
        return (
            f"{taking} of {len(self.members)} replicas {verb} appends,"
            f" {majority(len(self.members))} needed: {others}"
        )

    def count(self, standing: Standing) -> int:
        return sum(each.standing is standing for each in self.replicas)


NO_STORE = StoreReport(NO_SESSION, None, "it has no store", (), ())


@dataclass(slots=True)
class _Word:
    """The last words of one replica, by kind; times are None before the first of the kind."""

    asked_mark: TransactionId = NOTHING
    """The last commit when the replica was asked last."""
    told_at: float | None = None
    told_mark: TransactionId = NOTHING
    """The last commit when what was told last was asked for."""
    damaged_count: int = 0
    says_refusal: bool = False
    refusal: str | None = None
    appended_at: float | None = None
    refused_at: float | None = None
    refused: str = ""

    @property
    def heard_at(self) -> float | None:
        times = (self.told_at, self.appended_at, self.refused_at)
        return max((each for each in times if each is not None), default=None)


class ReplicaWords:
    """The last words of the replicas of one partition, across its sessions."""

    def __init__(self) -> None:
        self._words: defaultdict[ReplicaId, _Word] = defaultdict(_Word)

    def hear(
        self,
        replica_id: ReplicaId,
        request: ReplicaRequest,
        result: StorageMessage | WaltzError,
        now: float,
        *,
        says_refusal: bool,
    ) -> None:
        """Note what the answer to a request, or its failure, says of the replica."""
        if isinstance(request, AppendToReplica):
            if isinstance(result, SuccessResponse):
                self._words[replica_id].appended_at = now
            elif isinstance(result, RemoteStorageError):
                self.refused(replica_id, str(result), now)
        elif isinstance(request, AskCondition):
            if isinstance(result, ReplicaStateResponse):
                self.told(replica_id, condition_in(result), now, says_refusal=says_refusal)
            elif isinstance(result, RemoteStorageError):
                self.refused(replica_id, str(result), now)

    def asked(self, replica_id: ReplicaId, mark: TransactionId | None) -> None:
        """The replica is asked for its condition; `mark` is the last commit."""
        self._words[replica_id].asked_mark = NOTHING if mark is None else mark

    def told(
        self, replica_id: ReplicaId, condition: Condition, now: float, *, says_refusal: bool
    ) -> None:
        """`says_refusal`: whether its version can say why it would refuse an append."""
        word = self._words[replica_id]
        word.told_at, word.told_mark = now, word.asked_mark
        word.damaged_count = sum(
            each.next_transaction_id - each.first for each in condition.damaged
        )
        word.says_refusal, word.refusal = says_refusal, condition.refusal

    def appended(self, replica_id: ReplicaId, now: float) -> None:
        """The replica has acknowledged an append."""
        self._words[replica_id].appended_at = now

    def refused(self, replica_id: ReplicaId, reason: str, now: float) -> None:
        """The replica has answered that it does not do what it was asked for."""
        word = self._words[replica_id]
        word.refused_at, word.refused = now, reason

    def report(
        self,
        replica: ReplicaSession,
        finding: str,
        mark: TransactionId,
        now: float,
        *,
        not_before: float,
        opened_at: float,
    ) -> ReplicaReport:
        """Return how `replica` stands.

        finding     what recovery says of it, or of one that takes part what is said of its damage
        mark        the last commit
        not_before  a word that is older is not believed
        opened_at   when the session opened: one younger than `not_before` has not asked yet
        """
        word = self._words[replica.replica_id]
        heard_at = word.heard_at
        age = None if heard_at is None else now - heard_at

        def found(standing: Standing, takes: bool | None, text: str) -> ReplicaReport:
            return ReplicaReport(replica.replica_id, standing, takes, age, text)

        if replica.absence is not None:
            return found(Standing.ABSENT, False, replica.absence)
        if replica.phase is not ReplicaPhase.LIVE:
            return found(Standing.RECOVERING, False, finding)
        if heard_at is None or heard_at < not_before:
            ago = "never" if age is None else f"{age:.0f} s ago"
            if not replica.is_repairable:
                text = (
                    f"cannot be asked: its version knows no such question; it last answered {ago}"
                )
                return found(Standing.UNKNOWN, None, text)
            if opened_at >= not_before:
                return found(Standing.UNKNOWN, None, "has not been asked yet in this store session")
            return found(Standing.SILENT, None, f"does not answer; it last did {ago}")
        acknowledged = replica.acknowledged_through
        assert acknowledged is not None
        takes = _takes_appends(word, not_before)
        if takes is False:
            return found(Standing.REFUSING, False, f"takes no appends: {_refusal(word)}")
        if acknowledged < word.told_mark:
            lag = mark - acknowledged
            return found(Standing.BEHIND, False, f"is {lag} transactions behind, and catching up")
        if word.damaged_count:
            text = finding or f"has {word.damaged_count} damaged records"
            return found(Standing.DAMAGED, takes, text)
        if takes is None:
            text = "holds every commit; its version cannot say whether it would take an append"
            return found(Standing.UNKNOWN, None, text)
        return found(Standing.CURRENT, True, "holds every commit and takes appends")


def _takes_appends(word: _Word, not_before: float) -> bool | None:
    """Return whether the replica takes appends, by its last word; None: no word is recent."""
    said: list[tuple[float, bool]] = []
    if word.told_at is not None and word.says_refusal:
        said.append((word.told_at, word.refusal is None))
    if word.appended_at is not None:
        said.append((word.appended_at, True))
    if word.refused_at is not None:
        said.append((word.refused_at, False))
    at, takes = max(said, default=(not_before - 1.0, False))
    return takes if at >= not_before else None


def _refusal(word: _Word) -> str:
    is_told = word.told_at is not None and (
        word.refused_at is None or word.told_at >= word.refused_at
    )
    return (word.refusal if is_told else None) or word.refused


def store_report(
    replicas: Iterable[tuple[ReplicaSession, str]],
    words: ReplicaWords,
    *,
    session_id: SessionId,
    mark: TransactionId | None,
    obstacle: str | None,
    members: Sequence[ReplicaId],
    now: float,
    not_before: float,
    opened_at: float,
) -> StoreReport:
    """Return what is known of a partition's store; `replicas` with what recovery says of each."""
    reports = tuple(
        words.report(
            replica,
            finding,
            NOTHING if mark is None else mark,
            now,
            not_before=not_before,
            opened_at=opened_at,
        )
        for replica, finding in replicas
        if replica.phase is not ReplicaPhase.RELEASED
    )
    return StoreReport(session_id, mark, obstacle, tuple(members), reports)
