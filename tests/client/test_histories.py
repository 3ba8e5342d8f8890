"""Which log an application may follow: every case by value."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.client.applying.histories import Histories, HistoryBegin, ahead
from waltz.errors import HistoryChangedError
from waltz.types import PartitionId, TransactionId

KEY, OTHER, SECOND, THIRD = (UUID(int=number) for number in range(4))
P0, P1 = PartitionId(0), PartitionId(1)
PLAIN = Histories(KEY)
RESTORED = Histories(
    KEY, {P0: [HistoryBegin(SECOND, TransactionId(10)), HistoryBegin(THIRD, TransactionId(20))]}
)


def test_a_partition_begins_with_the_history_of_its_cluster() -> None:
    assert PLAIN.of(P0) == (HistoryBegin(KEY, TransactionId(0)),)
    assert PLAIN.current(P0) == KEY
    assert RESTORED.current(P0) == THIRD
    assert RESTORED.current(P1) == KEY


@pytest.mark.parametrize("mark", [None, -1, 0, 1 << 62])
@pytest.mark.parametrize("stored", [None, KEY])
def test_the_history_of_the_cluster_itself_may_go_on(stored: UUID | None, mark: int | None) -> None:
    PLAIN.check(P0, stored, mark)


def test_another_cluster_is_refused_with_both_keys_the_mark_and_the_remedy() -> None:
    with pytest.raises(HistoryChangedError) as raised:
        PLAIN.check(P0, OTHER, 7)
    text = str(raised.value)
    assert f"cluster {OTHER} through transaction 7" in text
    assert f"this client speaks with cluster {KEY}" in text
    assert "Nothing of this cluster was applied." in text
    assert "give the application an empty database" in text


def test_a_mark_that_is_not_known_is_not_told() -> None:
    with pytest.raises(HistoryChangedError) as raised:
        PLAIN.check(P0, OTHER)
    assert "through" not in str(raised.value)


@pytest.mark.parametrize(
    ("stored", "mark", "goes_on"),
    [
        (None, 9, True),
        (None, 10, False),
        (KEY, -1, True),
        (KEY, 9, True),
        (KEY, 10, False),
        (SECOND, 19, True),
        (SECOND, 20, False),
        (THIRD, 1 << 40, True),
        (OTHER, -1, False),
    ],
)
def test_an_ancestor_may_go_on_below_its_end(stored: UUID | None, mark: int, goes_on: bool) -> None:
    if goes_on:
        RESTORED.check(P0, stored, mark)
        return
    with pytest.raises(HistoryChangedError, match=rf"{stored or KEY} through transaction {mark}"):
        RESTORED.check(P0, stored, mark)


def test_who_is_ahead_is_told_both_keys_and_the_mark() -> None:
    assert ahead(KEY, P0, OTHER, 5).startswith(
        f"the application has applied partition 0 of cluster {OTHER} through transaction 5; the log"
        f" of cluster {KEY} ends before that"
    )
    assert "of an unknown cluster through transaction 5" in ahead(KEY, P0, None, 5)
