"""Where the slots of a lock are, and which appends of a batch record what before others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waltz.server.appends.locked_appends import (
    LockColumns,
    LockedAppends,
    lock_slot_columns,
    lock_slots,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "frames.txt"


def golden_slots() -> list[tuple[int, tuple[int, ...]]]:
    lines = [line for line in GOLDEN.read_text().splitlines() if line.startswith("lockslots")]
    return [
        (int(line.split()[1]), tuple(int(n) for n in re.findall(r"idx=(\d+)", line)))
        for line in lines
    ]


def test_slots_are_those_of_the_original() -> None:
    golden = golden_slots()
    assert len(golden) == 5
    for lock, slots in golden:
        assert lock_slots(lock, 30_000) == slots
    columns = lock_slot_columns([lock for lock, _ in golden], 30_000)
    assert [tuple(row) for row in columns.tolist()] == [slots for _, slots in golden]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(1, 100_000))
def test_columns_of_slots_are_the_slots_one_by_one(locks: list[int], slot_count: int) -> None:
    columns = lock_slot_columns(locks, slot_count).tolist()
    assert [tuple(row) for row in columns] == [lock_slots(lock, slot_count) for lock in locks]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=3), min_size=1),
    st.data(),
)
def test_a_lock_is_recorded_before_if_an_earlier_append_records_it(
    drawn: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    by_kind = [sorted(each) for each in drawn]
    appends = LockedAppends(
        np.zeros(len(drawn), np.int32),
        np.zeros(len(drawn), np.int64),
        np.array([[sum(kind == k for kind, _ in each) for k in range(3)] for each in by_kind]),
        np.array([lock for each in by_kind for _, lock in each], np.int64),
    )
    columns = LockColumns.of(appends, 100)
    locks = [(owner, kind, lock) for owner, each in enumerate(by_kind) for kind, lock in each]
    rows = [kind != 1 for _, kind, _ in locks]
    if not any(rows):
        return
    assert columns.recorded.tolist() == rows
    assert columns.checked.tolist() == [kind != 2 for _, kind, _ in locks]
    places = data.draw(st.lists(st.integers(0, len(locks) - 1)))
    found = columns.is_recorded_before(np.array(places, np.int64), np.array(rows))
    assert found.tolist() == [
        any(
            earlier < locks[place][0] and lock == locks[place][2] and is_recorded
            for (earlier, _, lock), is_recorded in zip(locks, rows, strict=True)
        )
        for place in places
    ]
