"""The history of a mark, as a column has it."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.client.databases.stored_marks import MARKS_TABLE, history_of, parked_table_name
from waltz.errors import HistoryChangedError


def test_a_text_that_is_no_history_is_refused() -> None:
    assert history_of(None) is None
    assert history_of(str(UUID(int=7))) == UUID(int=7)
    with pytest.raises(HistoryChangedError, match="the column history has 'seven'"):
        history_of("seven")


def test_parked_transactions_have_a_table_next_to_the_marks() -> None:
    assert parked_table_name(MARKS_TABLE) == "waltz_parked"
    assert parked_table_name("other") == "other_parked"
