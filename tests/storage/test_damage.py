"""Damaged ranges as sets of IDs, and the file that remembers them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support import DIRECTORY, fresh_disk, random, t
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.damage import (
    NONE,
    Damage,
    DamagedRange,
    DamageFile,
    KnownDamage,
    Remembered,
    damage_from,
    damage_text,
    decode_damage,
    encode_damage,
    united,
    without,
)

PATH = f"{DIRECTORY}/damaged.json"


def damage(*ranges: tuple[int, int]) -> Damage:
    return tuple(DamagedRange(t(first), t(following)) for first, following in ranges)


def ids(ranges: Damage) -> set[int]:
    return {number for first, following in ranges for number in range(first, following)}


some_damage = st.sets(st.integers(0, 30), max_size=12).map(
    lambda numbers: united(damage(*((number, number + 1) for number in numbers)), (), ())
)


@given(some_damage, some_damage, st.sets(st.integers(0, 31), max_size=4))
def test_union_is_that_of_sets_and_segments_stay_apart(
    one: Damage, other: Damage, firsts: set[int]
) -> None:
    result = united(one, other, [t(first) for first in firsts])
    assert ids(result) == ids(one) | ids(other)
    assert list(result) == sorted(result)
    for before, after in pairwise(result):
        assert before.next_transaction_id <= after.first
        assert before.next_transaction_id < after.first or after.first in firsts


@given(some_damage, st.integers(0, 31), st.integers(0, 31))
def test_difference_is_that_of_sets(ranges: Damage, first: int, following: int) -> None:
    result = without(ranges, t(first), t(following))
    assert ids(result) == ids(ranges) - set(range(first, following))
    assert all(one < other for one, other in result)


@given(some_damage, st.integers(0, 31))
def test_next_damage_is_the_first_that_does_not_end_before(ranges: Damage, number: int) -> None:
    found = damage_from(ranges, t(number))
    beyond = [one for one in ids(ranges) if one >= number]
    assert (found is None) == (not beyond)
    if found is not None:
        assert max(found.first, number) == min(beyond)


def test_damage_is_named() -> None:
    assert damage_text(damage((4, 5))) == "record 4"
    assert damage_text(damage((4, 7), (9, 10))) == "records 4 to 6, record 9"
    many = damage(*((number, number + 1) for number in range(0, 16, 2)))
    assert damage_text(many) == "record 0, record 2, record 4, record 6, record 8 and 3 ranges more"


@given(some_damage)
def test_file_says_what_was_written(ranges: Damage) -> None:
    assert decode_damage(encode_damage(ranges, t(40))) == Remembered(ranges, t(40))


def test_file_is_json() -> None:
    assert json.loads(encode_damage(damage((4, 7), (9, 10)), t(40)))["damaged"] == [[4, 7], [9, 10]]


@pytest.mark.parametrize("bit", [0x01, 0x04, 0x10])
def test_changed_file_says_the_same_or_nothing(bit: int) -> None:
    right = Remembered(damage((4, 7), (19, 30)), t(40))
    content = encode_damage(*right)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= bit
        assert decode_damage(bytes(changed)) in (None, right)
    for size in range(len(content) - 2):
        assert decode_damage(content[:size]) is None


def loaded(disk: SimulatedDisk) -> Damage:
    found = DamageFile(disk, DIRECTORY).load()
    assert found is not None
    return found.damage


def test_file_is_replaced_in_one_step_and_removed_when_empty() -> None:
    """Whenever the power is cut, it says what it said or what it was to say."""
    one, other = damage((4, 7)), damage((4, 7), (9, 100))
    disk = fresh_disk()
    DamageFile(disk, DIRECTORY).save(one, t(100))
    for before, after in ((one, other), (other, one), (one, ())):
        clones: list[SimulatedDisk] = []
        draw = random(after)
        disk.fault = lambda *_, clones=clones, draw=draw: clones.append(disk.crash_clone(draw))
        DamageFile(disk, DIRECTORY).save(after, t(100))
        disk.fault = None
        for clone in clones:
            assert loaded(clone) in (before, after)
        assert loaded(disk.crash_clone(draw)) == after
    assert disk.list_directory(DIRECTORY) == []


def test_leftover_of_a_crash_is_taken_over() -> None:
    disk = fresh_disk()
    disk.open(f"{PATH}.new", create=True).write_at(0, b"left over" * 100)
    DamageFile(disk, DIRECTORY).save(damage((1, 2)), t(9))
    assert DamageFile(disk, DIRECTORY).load() == Remembered(damage((1, 2)), t(9))


def known(disk: SimulatedDisk) -> KnownDamage:
    return KnownDamage(DamageFile(disk, DIRECTORY))


def test_known_damage_is_replaced_span_by_span() -> None:
    disk = fresh_disk()
    one = known(disk)
    assert one.load() == NONE
    one.replace(t(0), t(20), damage((3, 5), (8, 9)), firsts=[t(0)])
    one.replace(t(4), t(9), damage((6, 7)), firsts=[t(0)])
    assert one.ranges == damage((3, 4), (6, 7))
    one.replace(t(7), t(9), damage((7, 9)), firsts=[t(0), t(8)])
    assert one.ranges == damage((3, 4), (6, 9)), "only starts separate"
    one.replace(t(9), t(12), damage((9, 10)), firsts=[t(0), t(9)])
    assert one.ranges == damage((3, 4), (6, 9), (9, 10))


def test_known_damage_is_written_when_it_has_changed_and_again_until_it_works() -> None:
    disk = fresh_disk()
    one = known(disk)
    one.remember(t(30))
    assert disk.counts[DiskOperation.WRITE] == 0
    one.replace(t(0), t(20), damage((3, 5)), firsts=[t(0)])
    disk.fault = fail_nth(DiskOperation.WRITE, 1)
    one.remember(t(30))
    assert known(disk).load() == NONE
    one.remember(t(30))
    one.remember(t(30))
    assert disk.counts[DiskOperation.WRITE] == 2
    other = known(disk)
    assert other.load() == Remembered(damage((3, 5)), t(30))
    assert other.ranges == (), "it is looked at again first"
    other.remember(t(30))
    assert known(disk).load() == NONE


def test_file_that_cannot_be_trusted_is_no_empty_one() -> None:
    disk = fresh_disk()
    disk.open(PATH, create=True).write_at(0, b"{}")
    one = known(disk)
    assert one.load() is None
    one.remember(t(30))
    assert disk.list_directory(DIRECTORY) == []
