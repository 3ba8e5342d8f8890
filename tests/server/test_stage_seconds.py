"""The times of arrivals, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.server.appends.stage_seconds import ArrivalTimes


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.data())
def test_each_arrival_has_the_time_of_its_message(counts: list[int], data: st.DataObject) -> None:
    times, known = ArrivalTimes(), dict[int, float]()
    for now, count in enumerate(counts):
        known |= dict.fromkeys(range(len(known) + 1, len(known) + 1 + count), float(now))
        times.add(len(known), float(now))
    oldest = data.draw(st.integers(1, len(known)))
    times.forget_before(oldest)
    assert [times.find(each) for each in range(oldest, len(known) + 1)] == [
        known[each] for each in range(oldest, len(known) + 1)
    ]


def test_nothing_is_kept_of_messages_that_have_gone_on() -> None:
    times = ArrivalTimes()
    for last in range(10):
        times.add(last, 0.0)
    times.forget_before(10)
    assert times._lasts == times._times == []
    times.add(10, 1.0)
    times.forget_all()
    assert times._lasts == times._times == []
