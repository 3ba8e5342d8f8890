"""Which consumers a server's metrics tell of, and what they say of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.server.clients.consumer_lags import (
    CONSUMER_FAMILIES,
    CONSUMER_METRICS,
    CONSUMER_NAMES_MAX,
    CONSUMER_PLACES_MAX,
    GONE_SECONDS_MAX,
    ConsumerLag,
    ConsumerMarks,
    ConsumersState,
)
from waltz.server.commit_ages import Lag
from waltz.types import PartitionId, TransactionId

P0, P1, LAST = PartitionId(0), PartitionId(1), TransactionId(10)


def lag_of(partition_id: PartitionId, mark: TransactionId) -> tuple[TransactionId, Lag | None]:
    """A log that ends with LAST, its transactions a second apart and the last one just now."""
    return LAST, Lag(float(LAST - mark), None) if mark <= LAST else None


def note(marks: ConsumerMarks, connection: int, name: str, mark: int, place: int = 0) -> None:
    marks.note(connection, name, PartitionId(place), TransactionId(mark))


def state(marks: ConsumerMarks, now: float = 0.0) -> ConsumersState:
    found = marks.state(lag_of, now)
    marks.check_invariants()
    return found


def test_a_consumer_is_as_far_as_the_client_of_its_name_that_has_applied_most() -> None:
    marks = ConsumerMarks()
    note(marks, 1, "orders", 4)
    note(marks, 2, "orders", 7)
    note(marks, 1, "orders", 10, place=1)
    assert state(marks).lags == (
        ConsumerLag("orders", P0, True, 3, 3.0),
        ConsumerLag("orders", P1, True, 0, 0.0),
    )


def test_a_consumer_that_is_gone_still_lags() -> None:
    """That is when its lag matters most: its process may have crashed."""
    marks = ConsumerMarks()
    note(marks, 1, "orders", 4)
    note(marks, 2, "orders", 7)
    marks.leave(2, 5.0)
    assert state(marks).lags == (ConsumerLag("orders", P0, True, 6, 6.0),)
    marks.leave(1, 6.0)
    assert state(marks, 6.0 + GONE_SECONDS_MAX).lags == (ConsumerLag("orders", P0, False, 6, 6.0),)
    assert state(marks, 6.1 + GONE_SECONDS_MAX).lags == ()


def test_a_consumer_that_comes_back_from_an_older_state_says_so() -> None:
    marks = ConsumerMarks()
    note(marks, 1, "orders", 9)
    marks.leave(1, 5.0)
    note(marks, 2, "orders", 3)
    assert state(marks).lags == (ConsumerLag("orders", P0, True, 7, 7.0),)


def test_nothing_is_said_of_a_partition_of_another_server_or_of_a_mark_beyond_the_log() -> None:
    marks = ConsumerMarks()
    note(marks, 1, "orders", 4)
    assert marks.state(lambda partition_id, mark: None, 0.0).lags == ()
    note(marks, 1, "orders", 11)
    (lag,) = state(marks).lags
    assert (lag.transactions, lag.seconds) == (None, None)
    shown = {each.name: list(each.samples(state(marks))) for each in CONSUMER_FAMILIES}
    assert shown == {
        "consumer_lag_transactions": [],
        "consumer_lag_seconds": [],
        "consumer_connected": [(("orders", "0"), True)],
    }


def test_names_are_bounded_and_the_others_are_counted() -> None:
    """A hostile client may take as many names as it likes; those that were there stay."""
    marks = ConsumerMarks()
    for number in range(CONSUMER_NAMES_MAX + 20):
        note(marks, number, f"c{number}", 5)
        note(marks, number, f"c{number}", 6)
    found = state(marks)
    assert [each.name for each in found.lags] == [f"c{n}" for n in range(CONSUMER_NAMES_MAX)]
    assert found.left_out == 20 == CONSUMER_METRICS[0].value(found)
    marks.leave(60, 1.0)
    assert state(marks).left_out == 19
    marks.leave(3, 1.0)
    note(marks, 65, "c65", 8)
    found = state(marks)
    assert ConsumerLag("c65", P0, True, 2, 2.0) in found.lags
    assert "c3" not in {each.name for each in found.lags}, "it is gone, and made room"
    assert found.left_out == 18


def test_the_partitions_of_all_consumers_together_are_bounded() -> None:
    marks = ConsumerMarks()
    for number in range(CONSUMER_PLACES_MAX + 5):
        note(marks, 1, "orders", 5, place=number)
    note(marks, 2, "billing", 5)
    found = state(marks)
    assert len(found.lags) == CONSUMER_PLACES_MAX
    assert found.left_out == 6


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["note", "leave"]),
            st.integers(0, 5),
            st.integers(0, 3),
            st.integers(-1, 12),
        ),
        max_size=60,
    )
)
def test_the_marks_are_those_of_who_is_there_or_was_last(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Compared with all that was ever told, which a simpler truth is read from."""
    marks = ConsumerMarks()
    told: dict[tuple[str, int], dict[int, int]] = {}
    left: dict[tuple[str, int], int] = {}
    for verb, connection, place, mark in steps:
        name = f"c{connection % 2}"
        if verb == "note":
            note(marks, connection, name, mark, place)
            told.setdefault((name, place), {})[connection] = mark
        else:
            marks.leave(connection, 0.0)
            for key, found in told.items():
                if connection in found:
                    left[key] = found.pop(connection)
        marks.check_invariants()
    expected = {
        key: (bool(found), 10 - (max(found.values()) if found else left[key]))
        for key, found in told.items()
    }
    assert {
        (each.name, each.partition_id): (
            each.is_connected,
            each.transactions if each.transactions is not None else expected_beyond(expected, each),
        )
        for each in state(marks).lags
    } == expected


def expected_beyond(expected: dict[tuple[str, int], tuple[bool, int]], lag: ConsumerLag) -> int:
    """A mark beyond the log has no lag."""
    behind = expected[lag.name, lag.partition_id][1]
    assert behind < 0
    return behind
