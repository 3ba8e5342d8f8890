"""What is known of replicas, and what is said of appends because of it."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.errors import ConnectionLostError, RemoteStorageError, WaltzError
from waltz.record import empty_batch
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import (
    AppendToReplica,
    AskCondition,
    Condition,
    ReplicaConnected,
    ReplicaRequest,
)
from waltz.store.standing import NO_STORE, ReplicaWords, StoreReport, store_report
from waltz.types import NO_SESSION, NOTHING, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import Standing
from waltz.wire.storage_protocol import (
    DamagedRange,
    ReplicaStateResponse,
    SessionInfo,
    StorageMessage,
    SuccessResponse,
)

A, B, C = (ReplicaId(f"{name}:1") for name in "abc")
SESSION = SessionId(3)
MARK = TransactionId(9)
NOW, NOT_BEFORE, OPENED = 100.0, 85.0, 50.0


def condition(refusal: str | None = None, damaged: tuple[DamagedRange, ...] = ()) -> Condition:
    info = SessionInfo(SESSION, NOTHING, NOTHING)
    return Condition(info, MARK, damaged, refusal)


def live(replica_id: ReplicaId, held: int = MARK, *, repairable: bool = True) -> ReplicaSession:
    replica = ReplicaSession(SESSION, replica_id)
    replica.connected(ReplicaConnected(replica.link, repairable))
    replica.touch()
    replica.admit(TransactionId(held))
    return replica


def lost(replica_id: ReplicaId) -> ReplicaSession:
    replica = live(replica_id)
    replica.lose("it hung up")
    return replica


def told(
    words: ReplicaWords, *replica_ids: ReplicaId, at: float = NOW - 1, refusal: str | None = None
) -> None:
    for replica_id in replica_ids:
        words.asked(replica_id, MARK)
        words.told(replica_id, condition(refusal), at, says_refusal=True)


def report(
    words: ReplicaWords,
    *replicas: ReplicaSession,
    obstacle: str | None = None,
    finding: str | None = None,
    opened_at: float = OPENED,
) -> StoreReport:
    return store_report(
        [
            (each, finding or ("" if each.phase is ReplicaPhase.LIVE else "votes"))
            for each in replicas
        ],
        words,
        session_id=SESSION,
        mark=MARK,
        obstacle=obstacle,
        members=(A, B, C),
        now=NOW,
        not_before=NOT_BEFORE,
        opened_at=opened_at,
    )


def standings(found: StoreReport) -> list[Standing]:
    return [each.standing for each in found.replicas]


def test_replicas_that_have_said_so_lately_are_current() -> None:
    words = ReplicaWords()
    told(words, A, B, C)
    found = report(words, live(A), live(B), live(C))
    assert standings(found) == [Standing.CURRENT] * 3
    assert (found.is_writable, found.reason) == (True, None)
    assert [each.age_seconds for each in found.replicas] == [1.0] * 3


def test_a_replica_that_has_said_nothing_is_not_called_current() -> None:
    """F-5: not even while its connection stands, and the session counts on it."""
    words = ReplicaWords()
    told(words, A)
    told(words, B, at=NOT_BEFORE - 1)
    found = report(words, live(A), live(B), live(C))
    assert standings(found) == [Standing.CURRENT, Standing.SILENT, Standing.SILENT]
    assert found.is_writable is None
    assert found.reason == (
        "1 of 3 replicas are known to take appends, 2 needed: b:1 does not answer; it last did"
        " 16 s ago; c:1 does not answer; it last did never"
    )


def test_a_lost_replica_does_not_count_and_a_majority_is_enough() -> None:
    words = ReplicaWords()
    told(words, A, B, C)
    found = report(words, live(A), live(B), lost(C))
    assert standings(found) == [Standing.CURRENT, Standing.CURRENT, Standing.ABSENT]
    assert found.replicas[2].text == "was lost (it hung up)"
    assert found.is_writable is True


def test_replicas_that_would_refuse_an_append_make_a_partition_unwritable() -> None:
    """F-6: with a store session, and every replica connected and answering."""
    words = ReplicaWords()
    told(words, A)
    told(words, B, C, refusal="no space for appends")
    found = report(words, live(A), live(B), live(C))
    assert standings(found) == [Standing.CURRENT, Standing.REFUSING, Standing.REFUSING]
    assert found.is_writable is False
    assert found.reason is not None
    assert "b:1 takes no appends: no space for appends" in found.reason


@pytest.mark.parametrize("refused_last", [True, False])
def test_the_last_word_counts(refused_last: bool) -> None:
    words = ReplicaWords()
    told(words, A)
    words.refused(A, "no space", NOW - 0.5)
    if not refused_last:
        words.appended(A, NOW - 0.2)
    found = report(words, live(A)).replicas[0]
    expected = Standing.REFUSING if refused_last else Standing.CURRENT
    assert found.standing is expected


def test_a_replica_that_lags_is_behind_by_so_many() -> None:
    words = ReplicaWords()
    told(words, A)
    (found,) = report(words, live(A, held=4)).replicas
    assert (found.standing, found.takes_appends) == (Standing.BEHIND, False)
    assert found.text == "is 5 transactions behind, and catching up"


def test_a_damaged_replica_takes_appends_and_is_not_current() -> None:
    words = ReplicaWords()
    words.asked(A, MARK)
    damaged = (DamagedRange(TransactionId(2), TransactionId(5)),)
    words.told(A, condition(damaged=damaged), NOW, says_refusal=True)
    (found,) = report(words, live(A)).replicas
    assert (found.standing, found.takes_appends) == (Standing.DAMAGED, True)
    assert found.text == "has 3 damaged records"
    (found,) = report(words, live(A), finding="records 2-4 are damaged").replicas
    assert (found.standing, found.text) == (Standing.DAMAGED, "records 2-4 are damaged")


def test_what_a_version_cannot_say_is_unknown_but_for_an_append_that_it_took() -> None:
    """A Java node answers appends and no question."""
    words = ReplicaWords()
    (found,) = report(words, live(A, repairable=False)).replicas
    assert (found.standing, found.takes_appends) == (Standing.UNKNOWN, None)
    words.appended(A, NOW - 2)
    (found,) = report(words, live(A, repairable=False)).replicas
    assert found.standing is Standing.CURRENT
    words.asked(B, MARK)
    words.told(B, condition(), NOW, says_refusal=False)
    (found,) = report(words, live(B)).replicas
    assert (found.standing, found.takes_appends) == (Standing.UNKNOWN, None)


def test_a_session_that_has_just_opened_has_not_asked_yet() -> None:
    (found,) = report(ReplicaWords(), live(A), opened_at=NOW - 1).replicas
    assert (found.standing, found.takes_appends) == (Standing.UNKNOWN, None)


def test_without_a_session_nothing_is_writable_and_replicas_are_on_their_way() -> None:
    connecting = ReplicaSession(SESSION, A)
    recovering = ReplicaSession(SESSION, B)
    recovering.connected(ReplicaConnected(recovering.link))
    found = report(ReplicaWords(), connecting, recovering, obstacle="it waits")
    assert standings(found) == [Standing.ABSENT, Standing.RECOVERING]
    assert (found.is_writable, found.reason) == (False, "it waits")
    assert found.replicas[1].text == "votes"


def test_what_was_released_is_not_reported_and_no_store_is_no_majority() -> None:
    released = live(A)
    released.release("no longer assigned")
    assert released.phase is ReplicaPhase.RELEASED
    assert report(ReplicaWords(), released).replicas == ()
    assert (NO_STORE.session_id, NO_STORE.is_writable) == (NO_SESSION, False)
    assert report(ReplicaWords(), live(A), live(B)).is_writable is None


def test_answers_to_appends_and_to_questions_are_words_and_lost_answers_are_none() -> None:
    words = ReplicaWords()
    append = AppendToReplica(empty_batch(MARK))
    head, info = (SESSION, 0, PartitionId(0)), SessionInfo(SESSION, MARK, MARK)
    state = ReplicaStateResponse(*head, info, MARK, UUID(int=0), True, True, ())

    def standing(request: ReplicaRequest, result: StorageMessage | WaltzError) -> Standing:
        words.hear(A, request, result, NOW, says_refusal=True)
        return report(words, live(A)).replicas[0].standing

    assert standing(append, ConnectionLostError("cut")) is Standing.SILENT
    assert standing(AskCondition(1), RemoteStorageError("no space")) is Standing.REFUSING
    assert standing(AskCondition(1), state) is Standing.CURRENT
    words = ReplicaWords()
    assert standing(append, SuccessResponse(*head)) is Standing.CURRENT
