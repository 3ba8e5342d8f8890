"""Positions of derived tables as texts."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.row_changes import Position, identity
from waltz.types import PartitionId, TransactionId

ID = UUID(int=5)


def test_a_position_is_what_its_text_says() -> None:
    position = Position(ID, {PartitionId(10): TransactionId(1), PartitionId(2): TransactionId(7)})
    text = json.dumps(position.to_json())
    assert text == f'{{"table_id": "{ID}", "marks": {{"2": 7, "10": 1}}}}'
    assert Position.from_json(json.loads(text)) == position
    unused = {"table_id": str(ID), "marks": {"0": 0}}
    assert Position.from_json(unused) == Position(ID, {})


@pytest.mark.parametrize(
    "found",
    [
        17,
        {"0": 17},
        {"table_id": str(ID)},
        {"table_id": "5", "marks": {}},
        {"table_id": 5, "marks": {}},
        {"table_id": str(ID), "marks": [17]},
        {"table_id": str(ID), "marks": {"x": 17}},
        {"table_id": str(ID), "marks": {"0": -1}},
        {"table_id": str(ID), "marks": {"0": True}},
        {"table_id": str(ID), "marks": {"0": "17"}},
        {"table_id": str(ID), "marks": {}, "limit": 3},
    ],
)
def test_a_text_that_is_no_position_is_refused(found: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 .*is no position of a table; exp"):
        Position.from_json(found)


def test_a_table_has_an_id_for_each_history_that_it_follows() -> None:
    ids = {identity(ID, each) for each in (None, UUID(int=1), UUID(int=2))}
    assert len(ids) == 3
    assert identity(ID, None) == ID
