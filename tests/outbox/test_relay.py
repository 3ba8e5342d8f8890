"""The relay's machine: in a world where everything can happen, and step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.outbox.relay_world import judged, play
from waltz import ClientId, PartitionId, PartitionLocalLock, TransactionBuilder, TransactionId
from waltz.outbox import claimed_rows, relay
from waltz.outbox.claim import ClaimedRow, RelayState
from waltz.outbox.claimed_rows import ClaimedRows, RowContext
from waltz.outbox.outbox_row import OutboxRow, UnfitRow
from waltz.outbox.relay import (
    Append,
    Beat,
    Beaten,
    Confirm,
    Confirmed,
    Failed,
    Follow,
    Followed,
    Look,
    Looked,
    NotTaken,
    Phase,
    Relay,
    Release,
    Released,
    Reset,
    RowLogged,
    RowRefused,
    Settle,
    Settled,
    Stand,
    Stood,
    StopAsked,
    Superseded,
    TakeOver,
    TookOver,
    WasReset,
)

P0 = PartitionId(0)
STEPS = 600


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_each_row_gets_into_the_log_once_whatever_happens(first: int) -> None:
    for seed in range(first, first + 30):
        assert judged(play(seed, STEPS)) == [], seed


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 6_000, 500))
def test_each_row_gets_into_the_log_once_under_many_seeds(first: int) -> None:
    for seed in range(first, first + 500):
        assert judged(play(seed, STEPS)) == [], seed


def without_row_locks(patch: pytest.MonkeyPatch) -> None:
    locks = iter(range(10**9))
    patch.setattr(
        claimed_rows, "row_lock", lambda _, row_id: PartitionLocalLock("none", next(locks))
    )


def without_looking_into_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimedRows, "is_logged", lambda self, row_id: False)


def without_other_relays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimedRows, "_is_of_relay", lambda self, client_id: False)


def with_all_rows_of_a_key_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Relay, "check_invariants", lambda self: None)

    def begin(self: Relay, rows: Sequence[OutboxRow], now: float) -> list[relay.Effect]:
        self._next, self._queues, self.phase = (), {}, Phase.APPEND
        self._under_way = {each.row_id: each for each in rows}
        return [Append(each) for each in rows] or self._proceed(now)

    patch.setattr(Relay, "_begin", begin)


def with_rows_behind_parked_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relay, "chosen", lambda rows, unfit, held: list(rows))


def with_marks_of_now(patch: pytest.MonkeyPatch) -> None:
    """A relay that takes over begins at the end of the log."""
    patch.setattr(ClaimedRows, "get_client_high_water_mark", lambda self, partition_id: None)


def without_the_claim_of_before(patch: pytest.MonkeyPatch) -> None:
    def taken_over(self: RelayState, client_id: ClientId) -> RelayState:
        return replace(self, clients=(client_id,))

    patch.setattr(RelayState, "taken_over", taken_over)


def with_locks_as_of_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionBuilder, "set_locks_as_of", lambda self, transaction_id: None)
    patch.setattr(RowContext, "on_lock_failure", lambda self, transaction_id: None)


FOUND_WITHIN = 400
"""Seeds within which each mistake is found; most are found by the first ones."""


@pytest.mark.parametrize(
    "mistake",
    [
        without_row_locks,
        without_looking_into_the_log,
        without_other_relays,
        with_all_rows_of_a_key_at_once,
        with_rows_behind_parked_ones,
        with_marks_of_now,
        without_the_claim_of_before,
        with_locks_as_of_now,
    ],
)
def test_the_world_finds_this_mistake(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)

    def is_found(seed: int) -> bool:
        try:
            return bool(judged(play(seed, STEPS)))
        except AssertionError:
            return True

    assert any(map(is_found, range(FOUND_WITHIN)))


# Step by step

KEY, OUTBOX = UUID(int=1), UUID(int=2)
STATE = RelayState(OUTBOX, KEY, 1, clients=(ClientId(1),))


def row(number: int, key: str = "k", content: str = "") -> OutboxRow:
    return OutboxRow(number, key, P0, 0, (content or str(number)).encode())


def claiming(*rows: OutboxRow) -> RelayState:
    claim = tuple(ClaimedRow(each.row_id, P0, each.digest) for each in rows)
    return replace(STATE, claim=claim, marks={P0: TransactionId(0)})


def fresh(*, once: bool = False) -> Relay:
    machine = Relay(every_seconds=1.0, take_over_seconds=6.0, once=once)
    assert machine.deadline == 0.0
    assert machine.step([], 0.0) == [Stand()]
    return machine


def holder(*rows: OutboxRow) -> Relay:
    """A relay that has taken over a claim of these rows."""
    machine = fresh()
    assert machine.step([Stood(4, 0, True)], 0.0) == [TakeOver(4)]
    found = machine.step([TookOver(5, claiming(*rows), rows)], 0.0)
    if rows:
        assert found == [Follow(frozenset({P0}))]
    return machine


def test_a_relay_stands_by_for_one_that_gives_signs_of_life() -> None:
    machine = fresh()
    assert machine.step([Stood(4, 0, False)], 0.0) == []
    assert machine.phase is Phase.STANDBY
    now = 0.0
    for beat in range(1, 20):
        now += 1.0
        assert machine.step([], now) == [Stand()]
        assert machine.step([Stood(4, beat, False)], now) == []
    for _ in range(6):
        now += 1.0
        assert machine.step([], now) == [Stand()]
        found = machine.step([Stood(4, 19, False)], now)
    assert found == [TakeOver(4)], "six seconds without a sign"
    assert machine.step([NotTaken()], now) == []
    assert machine.phase is Phase.STANDBY


def test_rows_that_are_in_the_log_already_are_only_taken_out() -> None:
    machine = holder(row(1, "a"), row(2, "b"), row(3, "a"))
    assert machine.step([Followed(frozenset({1, 2}))], 0.0) == [Append(row(3, "a"))]
    assert machine.step([RowLogged(3)], 0.0) == [Look(frozenset({1, 2, 3}))]
    (settle,) = machine.step([Looked((), ())], 0.0)
    assert isinstance(settle, Settle)
    assert (settle.relayed, settle.parked, settle.rows) == ((1, 2, 3), (), ())
    assert machine.relayed == 0, "not known before the database has said so"
    assert machine.step([Settled(6, STATE)], 0.0) == [Look(frozenset())]
    assert (machine.relayed, machine.found) == (3, 2)


def test_of_a_key_one_row_is_under_way_and_others_pass() -> None:
    rows = row(1, "a"), row(2, "a"), row(3, "b")
    machine = holder(*rows)
    assert machine.step([Followed(frozenset())], 0.0) == [Append(rows[0]), Append(rows[2])]
    assert machine.step([RowLogged(3)], 0.0) == []
    assert machine.step([RowLogged(1)], 0.0) == [Append(rows[1])]
    assert machine.under_way == 1


def test_a_refused_row_is_looked_for_and_then_parked_with_what_follows_left_in_the_table() -> None:
    rows = row(1, "a"), row(2, "a"), row(3, "b")
    machine = holder(*rows)
    machine.step([Followed(frozenset())], 0.0)
    assert machine.step([RowRefused(1, "why")], 0.0) == [Confirm(1, P0)]
    assert machine.step([Confirmed(1, is_logged=False)], 0.0) == []
    assert machine.step([RowLogged(3)], 0.0) == [Look(frozenset({1, 2, 3}))]
    (settle,) = machine.step([Looked((row(4, "a"), row(5, "c")), ())], 0.0)
    assert isinstance(settle, Settle)
    assert settle.relayed == (3,)
    assert settle.parked == (UnfitRow(1, "a", "why"),)
    assert settle.rows == (row(5, "c"),), "nothing of the key a"


def test_a_refused_row_that_another_relay_has_appended_is_in_the_log() -> None:
    machine = holder(row(1, "a"), row(2, "a"))
    machine.step([Followed(frozenset())], 0.0)
    machine.step([RowRefused(1, "why")], 0.0)
    assert machine.step([Confirmed(1, is_logged=True)], 0.0) == [Append(row(2, "a"))]


def test_a_row_that_was_changed_after_it_was_claimed_ends_the_relay() -> None:
    machine = fresh()
    machine.step([Stood(4, 0, True)], 0.0)
    machine.step([TookOver(5, claiming(row(1)), (row(1, content="other"),))], 0.0)
    assert machine.step([Followed(frozenset())], 0.0) == [Reset()]
    assert machine.step([WasReset()], 0.0) == []
    assert machine.closed
    assert "row 1 was changed" in str(machine.final_error)


def test_a_claimed_row_that_was_deleted_is_counted_and_no_hindrance() -> None:
    machine = fresh()
    machine.step([Stood(4, 0, True)], 0.0)
    machine.step([TookOver(5, claiming(row(1), row(2)), (row(2),))], 0.0)
    assert machine.step([Followed(frozenset())], 0.0) == [Append(row(2))]
    machine.step([RowLogged(2)], 0.0)
    machine.step([Looked((), ())], 0.0)
    machine.step([Settled(6, STATE)], 0.0)
    assert (machine.relayed, machine.vanished) == (1, 1)


def test_rows_are_counted_once_however_often_they_are_found() -> None:
    rows = row(1, "a"), row(2, "b"), row(3, "c")
    machine = fresh()
    machine.step([Stood(4, 0, True)], 0.0)
    machine.step([TookOver(5, claiming(*rows), rows[:2])], 0.0)
    now = 0.0
    for version in range(6, 9):
        assert machine.step([Followed(frozenset({1}))], now) == [Append(rows[1])]
        machine.step([Failed("away")], now)
        machine.step([WasReset()], now)
        assert machine.deadline is not None
        now = machine.deadline
        machine.step([], now)
        machine.step([Stood(version - 1, 0, True)], now)
        machine.step([TookOver(version, claiming(*rows), rows[:2])], now)
    machine.step([Followed(frozenset({1, 2}))], now)
    machine.step([Looked((), ())], now)
    machine.step([Settled(9, STATE)], now)
    assert (machine.relayed, machine.found, machine.vanished) == (2, 2, 1)


def test_after_a_failure_everything_is_read_again_later_and_later() -> None:
    machine = holder(row(1))
    now = 0.0
    for pause in (0.1, 0.2, 0.4):
        assert machine.step([Failed("away"), RowLogged(1), Failed("away")], now) == [Reset()]
        assert machine.trouble == "away"
        assert machine.step([WasReset(), Superseded()], now) == []
        assert machine.deadline == pytest.approx(now + pause)
        now += pause + 0.001
        assert machine.step([], now) == [Stand()]
    assert machine.failures == 3
    machine.step([Stood(5, 0, True)], now)
    machine.step([TookOver(6, STATE, ())], now)
    machine.step([Looked((), ())], now)
    assert machine.trouble is None


def test_a_row_that_fails_at_each_attempt_is_tried_later_and_later_and_told_all_the_time() -> None:
    rows = row(1, "a"), row(2, "b")
    machine = holder(*rows)
    machine.step([Followed(frozenset())], 0.0)
    machine.step([RowLogged(1)], 0.0)
    now, pauses = 0.0, []
    for attempt in range(9):
        assert machine.step([Failed("row 2 is denied")], now) == [Reset()]
        machine.step([WasReset()], now)
        assert machine.deadline is not None
        pauses.append(machine.deadline - now)
        now = machine.deadline
        assert machine.step([], now) == [Stand()]
        machine.step([Stood(5 + attempt, 0, True)], now)
        machine.step([TookOver(6 + attempt, claiming(*rows), rows)], now)
        assert machine.step([Followed(frozenset({1}))], now) == [Append(rows[1])]
        assert machine.trouble == "row 2 is denied", "it is not better yet"
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
    machine.step([RowLogged(2)], now)
    assert machine.trouble is None


def test_a_relay_gives_signs_of_life_while_it_follows_new_partitions() -> None:
    """A partition may be away for long: relays would take over from each other all the time."""
    machine = holder()
    assert machine.step([Looked((row(1),), ())], 0.0) == [Follow(frozenset({P0}))]
    assert machine.deadline == 2.0
    assert machine.step([], 2.0) == [Beat(5)]
    assert machine.step([Beaten(1)], 2.0) == []
    assert machine.step([], 4.0) == [Beat(5)]
    assert machine.step([Followed(frozenset())], 4.0) == [], "the version stays until it has ended"
    (settle,) = machine.step([Beaten(1)], 4.0)
    assert isinstance(settle, Settle)
    assert settle.rows == (row(1),)


def test_no_statement_that_changes_the_version_is_under_way_with_a_beat() -> None:
    machine = holder()
    machine.step([Looked((), ())], 0.0)
    assert machine.phase is Phase.IDLE
    assert machine.step([], 3.0) == [Look(frozenset())]
    assert machine.step([Looked((), ())], 3.0) == [Beat(5)]
    assert machine.step([], 5.0) == []
    assert machine.deadline is None, "the answer wakes it"
    assert machine.step([Beaten(0)], 5.0) == [Look(frozenset())]


def test_a_relay_that_lost_the_outbox_stands_by() -> None:
    machine = holder()
    machine.step([Looked((), ())], 0.0)
    machine.step([], 3.0)
    assert machine.step([Superseded()], 3.0) == [Reset()] or machine.phase is Phase.RESET
    machine.step([WasReset()], 3.0)
    assert not machine.is_holder


def test_a_stop_waits_for_rows_under_way_and_settles_them() -> None:
    machine = holder(row(1), row(2))
    machine.step([Followed(frozenset())], 0.0)
    assert machine.step([StopAsked()], 0.0) == []
    assert machine.step([RowLogged(1)], 0.0) == [Release(5)], "row 2 stays claimed"
    machine.step([Released()], 0.0)
    assert machine.closed


def test_a_stop_settles_a_claim_that_has_ended() -> None:
    machine = holder(row(1))
    machine.step([Followed(frozenset())], 0.0)
    machine.step([StopAsked(), StopAsked()], 0.0)
    (settle,) = machine.step([RowLogged(1)], 0.0)
    assert isinstance(settle, Settle)
    assert machine.step([Settled(6, STATE)], 0.0) == [Release(6)]


def test_a_stop_does_not_wait_for_ever() -> None:
    machine = holder(row(1))
    machine.step([Followed(frozenset())], 0.0)
    machine.step([StopAsked()], 0.0)
    assert Release(5) in machine.step([], 5.0)
    machine.step([Failed("away")], 5.0)
    assert machine.closed


def test_a_relay_that_is_told_to_stop_while_it_takes_over_does_not_follow_the_log() -> None:
    """That may take as long as a partition is away, and the process would have to be killed."""
    machine = fresh()
    machine.step([Stood(4, 0, True)], 0.0)
    assert machine.step([StopAsked()], 0.0) == []
    assert machine.step([TookOver(5, claiming(row(1)), (row(1),))], 0.0) == [Release(5)]
    machine.step([Released()], 0.0)
    assert machine.closed


@pytest.mark.parametrize("steps", range(4))
def test_a_stop_ends_a_relay_wherever_it_is(steps: int) -> None:
    machine = fresh()
    script: list[relay.Event] = [
        Stood(4, 0, True),
        TookOver(5, claiming(row(1)), (row(1),)),
        Followed(frozenset({1})),
    ]
    effects: list[relay.Effect] = []
    for event in script[:steps]:
        effects = machine.step([event], 0.0)
    effects += machine.step([StopAsked()], 0.0)
    answers: dict[type, relay.Event] = {
        Settle: Settled(6, STATE),
        Release: Released(),
        Follow: Followed(frozenset({1})),
        Look: Looked((), ()),
    }
    for event in script[steps:]:
        effects += machine.step([event], 0.0)
    while effects and not machine.closed:
        effects = machine.step([answers[type(effects[-1])]], 0.0)
    assert machine.closed


def test_a_relay_that_runs_once_ends_when_nothing_is_left() -> None:
    machine = fresh(once=True)
    machine.step([Stood(-1, 0, True)], 0.0)
    assert machine.step([TookOver(0, STATE, ())], 0.0) == [Look(frozenset())]
    assert machine.step([Looked((), ())], 0.0) == [Release(0)]
    machine.step([Released()], 0.0)
    assert machine.closed
    assert machine.final_error is machine.trouble is None
    assert machine.is_complete


def test_a_relay_that_runs_once_and_is_stopped_before_is_not_complete() -> None:
    machine = fresh(once=True)
    machine.step([Stood(4, 0, False)], 0.0)
    machine.step([StopAsked()], 0.0)
    assert (machine.closed, machine.is_complete) == (True, False)
