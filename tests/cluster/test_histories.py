"""Which log may be followed on: every case by value, and against a log that is written out."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.cluster.histories import Histories, ahead
from waltz.cluster.log_history import LogHistory
from waltz.errors import HistoryChangedError
from waltz.types import PartitionId, TransactionId

KEY, OTHER, SECOND, THIRD = (UUID(int=number) for number in range(4))
P0, P1, P2 = PartitionId(0), PartitionId(1), PartitionId(2)
PLAIN = Histories(KEY)
MIDNIGHT = 1_790_812_800_000
RESTORED = Histories(
    KEY,
    (
        LogHistory(SECOND, MIDNIGHT, {P0: TransactionId(10), P1: TransactionId(5)}),
        LogHistory(THIRD, MIDNIGHT + 1000, {P0: TransactionId(20), P1: TransactionId(3)}),
    ),
)


def test_a_log_begins_with_the_history_of_its_cluster() -> None:
    assert PLAIN.current == KEY
    assert RESTORED.current == THIRD


@pytest.mark.parametrize("mark", [None, -1, 0, 1 << 62])
@pytest.mark.parametrize("stored", [None, KEY])
def test_the_history_of_the_cluster_itself_may_go_on(stored: UUID | None, mark: int | None) -> None:
    PLAIN.check(P0, stored, mark)


@pytest.mark.parametrize("histories", [PLAIN, RESTORED])
def test_another_cluster_is_refused_with_both_keys_the_mark_and_the_remedy(
    histories: Histories,
) -> None:
    with pytest.raises(HistoryChangedError) as raised:
        histories.check(P0, OTHER, 7)
    text = str(raised.value)
    assert f"history {OTHER} through transaction 7, and that is no history" in text
    assert f"of the log of cluster {KEY}" in text
    assert "Nothing of this cluster was applied." in text
    assert "give the application an empty database" in text


def test_a_mark_that_is_not_known_is_not_told() -> None:
    with pytest.raises(HistoryChangedError) as raised:
        PLAIN.check(P0, OTHER)
    assert "through" not in str(raised.value)


@pytest.mark.parametrize(
    ("partition", "stored", "mark", "goes_on"),
    [
        (P0, None, 9, True),
        (P0, None, 10, False),
        (P0, KEY, -1, True),
        (P0, KEY, 9, True),
        (P0, KEY, 10, False),
        (P0, KEY, None, True),
        (P0, SECOND, 19, True),
        (P0, SECOND, 20, False),
        (P0, THIRD, 1 << 40, True),
        (P1, KEY, 2, True),
        (P1, KEY, 3, False),  # the second restore went back further
        (P1, SECOND, 2, True),
        (P1, SECOND, 3, False),
        (P2, KEY, -1, True),
        (P2, KEY, 0, False),  # a partition that the restored cluster did not have
        (P2, THIRD, 0, True),
        (P0, OTHER, -1, False),
    ],
)
def test_an_ancestor_may_go_on_below_its_end(
    partition: PartitionId, stored: UUID | None, mark: int | None, goes_on: bool
) -> None:
    if stored is not None and mark is not None:
        assert RESTORED.holds(partition, stored, mark) == goes_on
    if goes_on:
        RESTORED.check(partition, stored, mark)
        return
    with pytest.raises(
        HistoryChangedError, match=rf"{stored or KEY} through transaction {mark}, and"
    ):
        RESTORED.check(partition, stored, mark)


def test_who_has_gone_beyond_a_restore_is_told_of_it_by_name() -> None:
    with pytest.raises(HistoryChangedError) as raised:
        RESTORED.check(P0, KEY, 12)
    assert str(raised.value) == (
        f"the application has applied partition 0 of history {KEY} through transaction 12, and the"
        f" log of cluster {KEY} was restored from an archive at 2026-10-01T00:00:00+00:00: from"
        f" transaction 10 on the partition has history {SECOND}. Transactions 10 to 12, as they"
        " were applied, are not in the log any more. Nothing that the log has there now was"
        " applied. Restore the application's database (high-water marks and what was applied) as of"
        " transaction 9 of this partition or before, or give the application an empty one."
    )


def test_of_several_restores_the_one_that_went_back_furthest_is_named() -> None:
    with pytest.raises(HistoryChangedError, match=f"from transaction 3 on .* history {THIRD}"):
        RESTORED.check(P1, KEY, 8)


def test_a_time_that_no_calendar_has_is_told_as_a_number() -> None:
    restore = LogHistory(SECOND, 1 << 62, {P0: TransactionId(1)})
    with pytest.raises(HistoryChangedError, match=f"at {1 << 62} ms after 1970"):
        Histories(KEY, (restore,)).check(P0, KEY, 1)


def test_who_is_ahead_is_told_both_keys_and_the_mark() -> None:
    assert ahead(KEY, P0, OTHER, 5).startswith(
        f"the application has applied partition 0 of cluster {OTHER} through transaction 5; the log"
        f" of cluster {KEY} ends before that"
    )
    assert "of an unknown cluster through transaction 5" in ahead(KEY, P0, None, 5)


def test_histories_that_others_continue_are_before_them() -> None:
    first = Histories(KEY, RESTORED.restores[:1])
    assert PLAIN.is_before(first)
    assert first.is_before(RESTORED)
    assert not RESTORED.is_before(first)
    assert not first.is_before(first)
    assert not Histories(KEY, RESTORED.restores[1:]).is_before(RESTORED)
    assert not PLAIN.is_before(Histories(OTHER, RESTORED.restores))


def test_what_a_server_tells_is_what_the_coordinator_keeps() -> None:
    kept = (LogHistory(SECOND, 7, {P1: TransactionId(5)}, (OTHER,)),)
    histories = Histories.kept(KEY, kept)
    assert histories.restores[0].retired_directories == ()
    assert Histories.told(KEY, histories.to_tell()) == histories


@given(
    appends=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    backs=st.lists(st.integers(0, 8), max_size=4),
    followed=st.integers(0, 4),
    mark=st.integers(-1, 40),
)
def test_exactly_a_prefix_of_the_log_of_now_may_be_followed_on(
    appends: list[int], backs: list[int], followed: int, mark: int
) -> None:
    """The oracle writes the logs out: a restore keeps a prefix, and what follows is different."""
    log: list[int] = []
    logs, restores, count = [], [], 0
    for number, appended in enumerate(appends):
        log = log + list(range(count, count + appended))
        count += appended
        logs.append(log)
        if number < len(backs):
            first = max(0, len(log) - backs[number])
            log = log[:first]
            name = UUID(int=100 + number)
            restores.append(LogHistory(name, 0, {P0: TransactionId(first)}))
        else:
            break
    if len(restores) == len(logs):
        logs.append(log)
    followed = min(followed, len(logs) - 1)
    mark = min(mark, len(logs[followed]) - 1)
    stored = KEY if followed == 0 else restores[followed - 1].history_id
    # Whatever was applied, the log of now has it, and whatever it lost was lost for good.
    kept = min([len(logs[followed]), *(each.firsts[P0] for each in restores[followed:])])
    try:
        Histories(KEY, tuple(restores)).check(P0, stored, mark)
    except HistoryChangedError:
        assert logs[followed][: mark + 1] != logs[-1][: mark + 1]
        assert mark >= kept
    else:
        assert logs[followed][: mark + 1] == logs[-1][: mark + 1]
