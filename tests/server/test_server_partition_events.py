from __future__ import annotations

import typing
from dataclasses import fields, is_dataclass

import pytest

from waltz.server import server_partition_events as partition_events

EVERYTHING = [
    *typing.get_args(partition_events.PartitionEvent),
    *typing.get_args(partition_events.PartitionEffect),
]


@pytest.mark.parametrize("kind", EVERYTHING)
def test_events_and_effects_are_frozen_values(kind: type) -> None:
    assert is_dataclass(kind)
    assert hasattr(kind, "__slots__")
    made = kind(*[None for _ in fields(kind)])
    assert made == kind(*[None for _ in fields(kind)])
    for field in fields(kind):
        with pytest.raises(AttributeError):
            setattr(made, field.name, 1)
