"""Every long test has its share, the shares take equally long, and durations survive their file."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shares import (
    SHARES,
    TURNS_PER_DAY,
    Durations,
    deal,
    in_share,
    parsed,
    printed,
    read_durations,
    recorded,
    renewed,
    share_at,
    share_from,
)

NAMES = st.text("abc", min_size=1, max_size=4)


@given(st.lists(NAMES, unique=True), st.dictionaries(NAMES, st.floats(0, 100)))
def test_the_ten_shares_are_all_long_tests_each_once(
    tests: list[str], seconds: dict[str, float]
) -> None:
    shares = [in_share(tests, share, seconds) for share in range(SHARES)]
    assert sorted(test for share in shares for test in share) == sorted(tests)


def test_the_ten_shares_of_the_recorded_long_tests_are_all_of_them_each_once() -> None:
    seconds = read_durations().long
    shares = [in_share(seconds, share, seconds) for share in range(SHARES)]
    assert sorted(test for share in shares for test in share) == sorted(seconds)


def test_no_share_takes_longer_than_another_by_more_than_one_test() -> None:
    """The longest test decides how equal shares can be."""
    seconds = read_durations().long
    sums = [0.0] * SHARES
    for test, share in deal(seconds).items():
        sums[share] += seconds[test]
    assert max(sums) - min(sums) <= max(seconds.values(), default=0.0)


def test_a_test_that_was_not_recorded_changes_the_share_of_no_other() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 3.0}
    for share in range(SHARES):
        before = in_share(["a", "b", "c"], share, seconds)
        after = in_share(["a", "new", "b", "c"], share, seconds)
        assert [each for each in after if each != "new"] == before


@pytest.mark.parametrize("step", [timedelta(days=1), timedelta(days=1) / TURNS_PER_DAY])
def test_ten_days_and_ten_turns_have_ten_different_shares(step: timedelta) -> None:
    """At the end of a year as well."""
    for start in (datetime(2024, 2, 25), datetime(2025, 12, 27, 23, 59), datetime(2028, 12, 31, 4)):
        found = [share_at(start + each * step) for each in range(SHARES)]
        assert sorted(found) == [*range(SHARES)]


def test_a_share_is_named_by_its_number_or_is_that_of_now() -> None:
    assert share_from("3") == 3
    assert 0 <= share_from("now") < SHARES
    for wrong in ("10", "-1", "three"):
        with pytest.raises(ValueError, match=r"shares are 0 to 9|three"):
            share_from(wrong)


def test_quick_tests_are_recorded_as_the_sum_of_their_file() -> None:
    seconds = {
        "tests/test_a.py::test_1": 0.05,
        "tests/test_a.py::test_2": 0.1,
        "tests/test_a.py::test_3": 1.5,
        "tests/test_b.py::test_4[x\\ty z]": 0.01,
    }
    durations = recorded(seconds, ["tests/test_b.py::test_4[x\\ty z]"])
    assert durations.single == {"tests/test_a.py::test_3": 1.5}
    assert durations.long == {"tests/test_b.py::test_4[x\\ty z]": 0.01}
    assert durations.others == {"tests/test_a.py": pytest.approx(0.15), "tests/test_b.py": 0}


def test_a_run_of_some_tests_renews_theirs_and_leaves_those_of_others() -> None:
    before = Durations(
        {"a::long": 9.0, "a::other": 8.0, "b::was_long": 7.0},
        {"a::slow": 1.0, "a::gone": 2.0, "c::slow": 3.0},
        {"a": 0.5, "b": 0.25, "c": 0.125},
    )
    seconds = {"a::long": 6.0, "a::slow": 4.0, "b::was_long": 5.0, "c::long": 6.0, "new::quick": 0}
    assert renewed(before, seconds, ["a::long", "c::long"]) == Durations(
        {"a::long": 6.0, "a::other": 8.0, "c::long": 6.0},
        {"a::slow": 4.0, "b::was_long": 5.0, "c::slow": 3.0},
        {"a": 0.0, "b": 0.0, "c": 0.125, "new": 0.0},
    )


def test_durations_are_read_as_they_were_written() -> None:
    durations = Durations({"a::b[x\\ty z]": 1.25}, {"a::c": 0.5, "a::d": 3.0}, {"a": 0.0})
    assert parsed(printed(durations)) == durations
