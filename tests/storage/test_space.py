"""Room on the file system, by value (SN-28, CF-111, UA-80, UA-81)."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ConfigurationError, SegmentFailedError, UnavailableError
from waltz.host import Space
from waltz.limits import DISK_FREE_BYTES_MIN, SPACE_RESERVE_BYTES
from waltz.storage.directory.space import (
    SPACE_HOLD_SECONDS,
    FreeMinimum,
    SpaceGuard,
    SpaceState,
    is_no_space,
    size_text,
)

MIB, GIB = 1 << 20, 1 << 30
TOTAL = 1000 * MIB
MINIMUM = FreeMinimum.parse("100MiB")
OK, LOW, SHORT = SpaceState.OK, SpaceState.LOW, SpaceState.SHORT


class Room:
    """A guard of a file system whose free space is known, at a time."""

    def __init__(self, free_mib: float, minimum: FreeMinimum = MINIMUM) -> None:
        self.now = 10.0
        self.guard = SpaceGuard("/storage", minimum, Space(int(free_mib * MIB), TOTAL))
        self.read(free_mib)

    def read(self, free_mib: float, *, has_reserve: bool = True) -> SpaceState:
        self.now += 1.0
        return self.guard.observe(
            Space(int(free_mib * MIB), TOTAL),
            self.now,
            settled_bytes=self.guard.settled_bytes(),
            has_reserve=has_reserve,
        )


def test_the_minimum_is_a_share_or_a_size_and_by_default_the_smaller_of_both() -> None:
    """CF-111."""
    assert FreeMinimum().of(100 * GIB) == 5 * GIB
    assert FreeMinimum().of(1000 * GIB) == DISK_FREE_BYTES_MIN == 10 * GIB
    assert FreeMinimum.parse("20%").of(1000 * GIB) == 200 * GIB
    assert FreeMinimum.parse("0.5 %").of(1000 * GIB) == 5 * GIB
    assert FreeMinimum.parse("64MiB").of(1000 * GIB) == 64 * MIB
    assert FreeMinimum.parse("1.5 GiB").of(1000 * GIB) == 1536 * MIB
    assert FreeMinimum.parse("4096").of(1000 * GIB) == 4096
    assert FreeMinimum.parse("0").of(1000 * GIB) == 0
    assert FreeMinimum.parse("2TiB").of(GIB) == GIB


@pytest.mark.parametrize("text", ["", "5 percent", "-1", "101%", "64MB", "MiB", "1e9"])
def test_a_minimum_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"storage\.diskFreeMin is .* like 5% or"):
        FreeMinimum.parse(text)


def test_sizes_are_told_for_people() -> None:
    sizes = (0, 1023, 1536, 10 * MIB, 5 * GIB, 3000 * GIB)
    assert [size_text(size) for size in sizes] == [
        "0 bytes", "1023 bytes", "1.5 KiB", "10.0 MiB", "5.0 GiB", "2.9 TiB",
    ]  # fmt: skip


def test_states_follow_the_readings_and_do_not_flutter() -> None:
    """Warned below twice the minimum, refused below it, each left again a tenth above."""
    room = Room(500)
    states = [
        (free, room.read(free))
        for free in (201, 199, 210, 221, 199, 99, 101, 109, 111, 99, 230, 300)
    ]
    assert states == [
        (201, OK), (199, LOW), (210, LOW), (221, OK), (199, LOW), (99, SHORT),
        (101, SHORT), (109, SHORT), (111, LOW), (99, SHORT), (230, OK), (300, OK),
    ]  # fmt: skip


def test_a_refusal_tells_numbers_setting_and_remedy() -> None:
    """SN-28."""
    room = Room(500)
    account = room.guard.account()
    account.check(MIB)
    room.read(90)
    with pytest.raises(UnavailableError) as caught:
        account.check(1)
    assert str(caught.value) == (
        "no space for appends: the file system of /storage has 89.0 MiB free of 1000.0 MiB;"
        " 100.0 MiB have to stay free (storage.diskFreeMin). Make room there: appends go on by"
        " themselves once 110.0 MiB are free"
    )
    room.read(112)
    account.check(1)


def test_partitions_together_cannot_overrun_between_two_readings() -> None:
    room = Room(150)
    accounts = [room.guard.account() for _ in range(10)]
    for account in accounts[:5]:
        account.check(10 * MIB)
    for account in accounts[5:]:
        with pytest.raises(UnavailableError, match=r"100\.0 MiB free"):
            account.check(10 * MIB)
    assert room.guard.state is SHORT


def test_what_is_let_through_counts_until_a_reading_has_it() -> None:
    """A reading has what was written before it was taken, and of the rest nobody knows."""
    room = Room(500)
    one, other = room.guard.account(), room.guard.account()
    one.check(100 * MIB)
    one.settle()
    other.check(50 * MIB)
    assert room.guard.free_bytes == 350 * MIB
    room.read(400)
    assert room.guard.free_bytes == 350 * MIB
    other.settle()
    room.read(350)
    assert room.guard.free_bytes == 350 * MIB
    with pytest.raises(UnavailableError):
        one.check(400 * MIB)
    assert room.guard.free_bytes == 350 * MIB


def test_without_a_reserve_nothing_is_appended() -> None:
    """A node whose disk has no room for the reserve starts and says what it takes to go on."""
    guard = SpaceGuard("/storage", FreeMinimum.parse("1MiB"), Space(10 * MIB, TOTAL))
    with pytest.raises(UnavailableError, match=r"10\.0 MiB free .* once 48\.0 MiB"):
        guard.account().check(1)
    assert not guard.reserve_wanted(held=False)
    guard.observe(Space(48 * MIB, TOTAL), 1.0, settled_bytes=0, has_reserve=False)
    assert guard.state is SHORT
    assert guard.reserve_wanted(held=False)
    guard.observe(Space(32 * MIB, TOTAL), 1.0, settled_bytes=0, has_reserve=True)
    assert guard.state is OK


def test_a_file_system_that_a_write_found_full_is_not_believed_at_once() -> None:
    """Quotas and reserved blocks are not in the reading; nor is a neighbour that takes and gives
    in turn."""
    room = Room(500)
    account = room.guard.account()
    room.guard.meet_full(room.now)
    with pytest.raises(UnavailableError, match="and a write has just found it full"):
        account.check(1)
    assert not room.guard.reserve_wanted(held=True)
    assert room.read(500, has_reserve=False) is SHORT
    assert not room.guard.reserve_wanted(held=False)
    room.now += SPACE_HOLD_SECONDS
    assert room.read(500, has_reserve=False) is SHORT
    assert room.guard.reserve_wanted(held=False)
    assert room.read(484) is OK


@given(st.integers(0, 200 * MIB), st.integers(0, 100 * MIB), st.booleans())
def test_giving_the_reserve_back_is_no_reason_to_take_it_again(
    free: int, minimum: int, held: bool
) -> None:
    guard = SpaceGuard("/storage", FreeMinimum(100.0, minimum), Space(free, TOTAL))
    wanted = guard.reserve_wanted(held=held)
    if wanted == held:
        return
    free += SPACE_RESERVE_BYTES if held else -SPACE_RESERVE_BYTES
    assert free >= 0
    state = guard.observe(Space(free, TOTAL), 1.0, settled_bytes=0, has_reserve=wanted)
    assert guard.reserve_wanted(held=wanted) == wanted
    assert (state is SHORT) == held


def test_no_space_is_told_from_other_failures_through_what_it_caused() -> None:
    def failed(number: int) -> SegmentFailedError:
        error = SegmentFailedError("write failed")
        error.__cause__ = OSError(number, "a text")
        return error

    assert is_no_space(OSError(errno.ENOSPC, "full"))
    assert is_no_space(failed(errno.ENOSPC))
    assert is_no_space(failed(errno.EDQUOT))
    assert not is_no_space(failed(errno.EIO))
    assert not is_no_space(SegmentFailedError("closed by an earlier failure"))
    assert not is_no_space(None)
