"""Holds by themselves: what waits for their end, what breaks them, how often there may be one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.server.builders import batch
from waltz.limits import HOLD_PAUSE_SECONDS, HOLD_SECONDS_MAX
from waltz.server.hold import NO_SUCH_HOLD, TIME_IS_UP, Hold
from waltz.server.server_partition_events import (
    ConnectionDrained,
    ConnectionLost,
    HoldEnded,
    HoldReleased,
    HoldRequested,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed

TOOL = 50
SECONDS = HOLD_SECONDS_MAX

COMMITTED = Committed(batch(0, 1))
FAILED = AppendsFailed(2)


def begun() -> Hold:
    hold = Hold()
    assert hold.begin(HoldRequested(1, TOOL, SECONDS), 0.0) is None
    return hold


def test_outcomes_of_the_store_wait_and_nothing_else_does() -> None:
    hold = begun()
    assert hold.let_through(COMMITTED) == ()
    assert hold.let_through(ConnectionDrained(3)) == (ConnectionDrained(3),)
    assert hold.let_through(FAILED) == ()
    hold.check_invariants()
    assert hold.release(HoldReleased(1, TOOL)) == (HoldEnded(1, None), [COMMITTED, FAILED])
    assert hold.let_through(COMMITTED) == (COMMITTED,)


def test_what_was_kept_back_comes_before_the_event_that_breaks_the_hold() -> None:
    hold = begun()
    hold.let_through(COMMITTED)
    closed = StoreClosed("a replica was lost")
    assert hold.let_through(closed) == (COMMITTED, closed)
    ended, kept_back = hold.release(HoldReleased(1, TOOL))
    assert (ended, kept_back) == (HoldEnded(1, "the store session has changed"), [])


def test_a_hold_that_was_broken_and_begun_again_by_another_is_not_that_of_the_first() -> None:
    hold = begun()
    assert hold.end(TIME_IS_UP) == []
    assert hold.begin(HoldRequested(2, 51, SECONDS), HOLD_PAUSE_SECONDS) is None
    assert hold.let_through(ConnectionLost(TOOL)) == (ConnectionLost(TOOL),)
    assert hold.release(HoldReleased(1, TOOL)) == (HoldEnded(1, NO_SUCH_HOLD), [])
    assert hold.until is not None
    assert hold.release(HoldReleased(2, 51)) == (HoldEnded(2, None), [])


@given(
    st.lists(
        st.tuples(st.floats(0.0, 2.0), st.floats(0.001, SECONDS), st.floats(0.0, 1.0)), max_size=60
    )
)
def test_holds_take_a_twentieth_of_the_time_at_most(
    wishes: list[tuple[float, float, float]],
) -> None:
    """All askers together, however often and for how long they ask."""
    holds, now, held_seconds = Hold(), 0.0, 0.0
    for number, (pause, seconds, share) in enumerate(wishes):
        now += pause
        if holds.until is not None and now >= holds.until:
            holds.end(TIME_IS_UP)
        asked = HoldRequested(number, TOOL, seconds)
        if holds.begin(asked, now) is None:
            held_seconds += share * seconds
            holds.release(HoldReleased(number, TOOL))
        holds.check_invariants()
    assert held_seconds <= 0.05 * (now + HOLD_PAUSE_SECONDS) + 1e-9
