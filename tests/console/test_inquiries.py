"""Durations between two answers, and shares of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.console.details import stage
from waltz.console.figure_text import bounds_text
from waltz.console.inquiries import quantile, stages_between


def test_durations_between_two_answers_are_their_difference() -> None:
    before, after = (stage("store", 1, 2, 3),), (stage("store", 4, 2, 5),)
    found = stages_between(before, after)
    assert found is not None
    assert [each.count for each in found[0].buckets][:4] == [3, 0, 2, 0]
    assert found[0].sum_microseconds == 5000
    assert stages_between(after, before) is None, "the partition was opened anew"
    assert stages_between((), after) is None
    other = replace(after[0], buckets=after[0].buckets[1:])
    assert stages_between((other,), after) is None


@given(st.lists(st.integers(0, 20), min_size=9, max_size=9), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_share_ends_in_the_bucket_where_that_many_durations_end(
    counts: list[int], share: float
) -> None:
    """Compared with the durations one by one."""
    found = quantile(stage("store", *counts), share)
    bounds = [each.bound_microseconds / 1e6 for each in stage("store").buckets]
    each_bound = [bound for bound, count in zip(bounds, counts, strict=True) for _ in range(count)]
    if not each_bound:
        assert found is None
        return
    needed = next(n for n in range(1, len(each_bound) + 1) if n >= share * len(each_bound))
    high = each_bound[needed - 1]
    assert found is not None
    assert found[1] == (high if high > 0 else None)
    assert found[0] == max([0.0, *(b for b in bounds if b > 0 and (high < 0 or b < high))])


def test_bounds_are_shown_in_the_unit_in_which_they_are_short() -> None:
    assert bounds_text((0.0, 0.0001)) == "0 to 0.1 ms"
    assert bounds_text((0.5, 1.0)) == "500 to 1000 ms"
    assert bounds_text((1.0, 2.5)) == "1 to 2.5 s"
    assert bounds_text((10.0, None)) == "10 s or more"
    assert bounds_text(None) == "\N{EN DASH}"
