"""The refusal with its code, and what is kept of a history."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import HistoryChangedError
from waltz.spark.followed_history import expect_history, later_history
from waltz.types import PartitionId, TransactionId

KEY, SECOND = UUID(int=1), UUID(int=2)
ENDS = {PartitionId(0): TransactionId(5), PartitionId(1): TransactionId(0)}


def restored(*firsts: int) -> Histories:
    begins = {PartitionId(n): TransactionId(first) for n, first in enumerate(firsts)}
    return Histories(KEY, (LogHistory(SECOND, 0, begins),))


def test_the_first_history_is_not_kept_so_that_all_is_as_before() -> None:
    assert later_history(Histories(KEY)) is None
    assert later_history(restored(5, 0)) == SECOND


@pytest.mark.parametrize("histories", [Histories(KEY), restored(5, 0), restored(9, 9)])
def test_what_ends_at_the_point_or_before_is_in_the_log(histories: Histories) -> None:
    expect_history(histories, None, ENDS, who="it", remedy="Do")


def test_what_goes_beyond_is_refused_with_a_code_and_the_remedy() -> None:
    with pytest.raises(HistoryChangedError) as raised:
        expect_history(restored(4, 0), None, ENDS, who="the copy", remedy="Do this")
    said = str(raised.value)
    assert said.startswith(f"WALTZ-2017 the copy has applied partition 0 of history {KEY} through")
    assert said.endswith(
        "Transactions 4 to 4, as they were applied, are not in the log any more. Do this"
    )
    expect_history(restored(4, 0), SECOND, ENDS, who="the copy", remedy="Do this")
