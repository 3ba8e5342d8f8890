"""Counts of durations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.figures import BOUNDS, Durations


@given(st.lists(st.sampled_from([*BOUNDS, 0.0, 3.3, 11.0])))
def test_each_bound_counts_what_took_no_longer(seconds: list[float]) -> None:
    durations = Durations()
    for taken in seconds:
        durations.add(taken)
    assert durations.count == len(seconds)
    assert abs(durations.sum_seconds - sum(seconds)) < 1e-6
    assert list(durations.cumulative()) == [
        (bound, sum(taken <= bound for taken in seconds)) for bound in BOUNDS
    ]
