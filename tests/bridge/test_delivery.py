"""The machine of a partition's delivery, by value."""

from __future__ import annotations

from collections.abc import Sequence

from waltz.bridge.delivery import (
    GRACE_SECONDS,
    ONCE_ATTEMPTS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    Abandon,
    Accepted,
    CaughtUp,
    Delivery,
    Effect,
    Event,
    Failed,
    Phase,
    Post,
    Refused,
    Save,
    Saved,
    Sending,
    StopAsked,
)


def delivery(next_id: int = 10, *, end: int | None = None) -> Delivery:
    return Delivery(next_id, count_max=8, retry_seconds_max=4.0, end=end)


def step(machine: Delivery, *events: Event, now: float = 0.0) -> Sequence[Effect]:
    effects = machine.step(events, now)
    machine.check_invariants()
    return effects


def trouble_of(machine: Delivery) -> tuple[str | None, int]:
    return machine.trouble, machine.refused_in_a_row


def test_the_next_post_waits_until_the_progress_is_kept() -> None:
    machine = delivery()
    assert step(machine) == [Post(10, 8)]
    assert step(machine, Sending(14)) == []
    assert step(machine, Accepted(14, 5)) == [Save(15, True)]
    assert step(machine, Saved()) == [Post(15, 8)]
    assert (machine.posted, machine.posts) == (5, 1)


def test_what_is_left_out_moves_the_progress_and_is_no_post() -> None:
    machine = delivery()
    step(machine)
    assert step(machine, Accepted(99, 0)) == [Save(100, False)]
    assert (machine.posted, machine.posts) == (0, 0)


def test_what_was_refused_is_posted_again_after_pauses_that_double_up_to_a_bound() -> None:
    machine = delivery()
    step(machine)
    now, pauses = 0.0, []
    for _ in range(6):
        step(machine, Sending(17), now=now)
        assert step(machine, Refused("500", jitter=1.0), now=now) == []
        assert machine.phase is Phase.PAUSED
        assert machine.deadline is not None
        pauses.append(machine.deadline - now)
        assert step(machine, now=machine.deadline - 0.01) == []
        now = machine.deadline
        assert step(machine, now=now) == [Post(10, 8)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert machine.trouble == "500"
    step(machine, Accepted(17, 8), now=now)
    assert machine.trouble is None


def test_a_pause_is_shortened_at_random_by_at_most_a_half() -> None:
    machine = delivery()
    step(machine)
    step(machine, Refused("500", jitter=0.0))
    assert machine.deadline == 0.25


def test_retry_after_is_heeded_up_to_a_bound_and_never_shortens_a_pause() -> None:
    for asked, pause in ((30.0, 30.0), (0.0, 0.25), (1e9, RETRY_AFTER_SECONDS_MAX), (-5.0, 0.25)):
        machine = delivery()
        step(machine)
        step(machine, Refused("503", 0.0, retry_after_seconds=asked))
        assert machine.deadline == pause


def test_a_transaction_that_a_receiver_cannot_take_holds_up_none_before_it() -> None:
    """The receiver takes no post that has transaction 13."""
    machine = delivery()
    (effect,) = step(machine)
    now = 0.0
    taken: list[int] = []
    for _ in range(30):
        assert isinstance(effect, Post)
        last = effect.first + effect.count_max - 1
        step(machine, Sending(last), now=now)
        if last < 13:
            taken += range(effect.first, last + 1)
            step(machine, Accepted(last, effect.count_max), now=now)
            (effect,) = step(machine, Saved(), now=now)
        else:
            step(machine, Refused("422", 1.0, is_for_content=True), now=now)
            assert machine.deadline is not None
            now = machine.deadline
            (effect,) = step(machine, now=now)
    assert taken == [10, 11, 12]
    assert effect == Post(13, 1)


def test_a_partition_never_passes_over_what_is_refused() -> None:
    machine = delivery()
    step(machine)
    now = 0.0
    for _ in range(1_000):
        step(machine, Sending(10), Refused("400", 1.0, is_for_content=True), now=now)
        assert machine.deadline is not None
        now = machine.deadline
        assert step(machine, now=now)[0].first == 10  # type: ignore[union-attr]


def test_a_progress_that_cannot_be_kept_is_tried_again_before_the_next_post() -> None:
    machine = delivery()
    step(machine)
    step(machine, Accepted(10, 1))
    step(machine, Refused("no space", 1.0))
    assert step(machine, now=10.0) == [Save(11, True)]
    assert trouble_of(machine) == ("no space", 1)
    assert step(machine, Saved(), now=10.0) == [Post(11, 8)]
    assert trouble_of(machine) == (None, 0), "the log may be idle for days"


def test_a_partition_that_has_nothing_left_to_deliver_waits_for_nobody() -> None:
    machine = delivery()
    step(machine)
    step(machine, Refused("the log is away", 1.0))
    assert step(machine, now=10.0) == [Post(10, 8)]
    assert trouble_of(machine) == ("the log is away", 1), "it may still be"
    assert step(machine, CaughtUp(), now=10.0) == []
    assert trouble_of(machine) == (None, 0)
    step(machine, Sending(12), Refused("500", 1.0), CaughtUp(), now=10.0)
    assert trouble_of(machine) == ("500", 1), "an answer of before"


def test_a_run_to_the_end_ends_there_or_gives_up() -> None:
    machine = delivery(end=12)
    step(machine)
    step(machine, Accepted(11, 2))
    assert step(machine, Saved()) == [Abandon()]
    assert (machine.closed, machine.is_complete) == (True, True)
    machine = delivery(end=12)
    step(machine)
    now = 0.0
    for _ in range(ONCE_ATTEMPTS_MAX - 1):
        step(machine, Refused("500", 1.0), now=now)
        assert machine.deadline is not None
        now = machine.deadline
        step(machine, now=now)
    assert not machine.closed
    step(machine, Refused("500", 1.0), now=now)
    assert (machine.closed, machine.is_complete) == (True, False)
    assert step(delivery(12, end=12)) == [Abandon()], "nothing is left to do"


def test_a_stop_gives_a_post_under_way_a_few_seconds() -> None:
    machine = delivery()
    step(machine)
    step(machine, Sending(12), StopAsked())
    assert not machine.closed
    assert step(machine, Accepted(12, 3), now=1.0) == [Save(13, True)]
    assert step(machine, Saved(), now=1.0) == [Abandon()]
    machine = delivery()
    step(machine)
    step(machine, Sending(12), StopAsked())
    assert machine.deadline == GRACE_SECONDS
    assert step(machine, now=GRACE_SECONDS) == [Abandon()]
    assert machine.next_id == 10


def test_a_stop_ends_a_partition_that_waits_at_once() -> None:
    machine = delivery()
    step(machine)
    assert step(machine, StopAsked()) == [Abandon()]
    machine = delivery()
    step(machine)
    step(machine, Refused("500", 1.0))
    assert step(machine, StopAsked()) == [Abandon()]


def test_an_error_that_nothing_can_mend_ends_the_partition() -> None:
    machine = delivery()
    step(machine)
    assert step(machine, Failed("restored")) == [Abandon()]
    assert (machine.closed, machine.final_error) == (True, "restored")
    assert step(machine, Accepted(99, 1)) == []
    assert machine.next_id == 10
