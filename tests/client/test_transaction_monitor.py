"""The cases of the original's TransactionMonitorTest, and a slow truth beside them (CI-14..19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.appends.transaction_monitor import MonitorState, TransactionMonitor
from waltz.errors import ClientClosedError, PartitionInactiveError
from waltz.types import ClientId, Generation, PartitionId, RequestId


def request(number: int, client_id: int = 1) -> RequestId:
    return RequestId(ClientId(client_id), Generation(1), PartitionId(0), number)


def started(*numbers: int) -> TransactionMonitor[int]:
    monitor: TransactionMonitor[int] = TransactionMonitor()
    monitor.start()
    for number in numbers:
        assert monitor.register(request(number), [number])
    return monitor


def test_a_commit_decides_itself_and_fails_all_older_ones() -> None:
    """CI-14, CI-15: register 1 to 4; commit 1: only 1 is done; commit 4: 2 and 3 failed."""
    monitor = started(1, 2, 3, 4)
    assert monitor.commit(request(1)) == ([], [1])
    assert monitor.count == 3
    assert monitor.commit(request(4)) == ([2, 3], [4])
    assert monitor.count == 0
    assert monitor.commit(request(4)) == ([], [])


def test_commits_of_others_change_nothing() -> None:
    """CI-16."""
    monitor = started(1, 2)
    assert monitor.commit(request(2, client_id=2)) == ([], [])
    assert monitor.count == 2


def test_an_abort_takes_out_one_only() -> None:
    """CI-18."""
    monitor = started(1, 2, 3)
    assert monitor.abort(request(2)) == 2
    assert monitor.abort(request(2)) is None
    assert monitor.commit(request(3)) == ([1], [3])


def test_a_flush_fails_all_up_to_its_append() -> None:
    monitor = started(1, 2, 3)
    assert monitor.flush(request(2)) == [1, 2]
    assert monitor.flush(request(2)) == []
    assert list(monitor.items()) == [(request(3), 3)]


def test_a_flush_for_an_append_that_is_decided_fails_the_older_ones() -> None:
    monitor = started(1, 2, 3)
    monitor.abort(request(2))
    assert monitor.flush(request(2)) == [1]


def test_the_youngest_pending_append_is_the_last_registered() -> None:
    monitor = started()
    assert monitor.last_registered is None
    monitor = started(1, 2)
    assert monitor.last_registered == request(2)
    monitor.abort(request(2))
    assert monitor.last_registered == request(1)


def test_a_duplicate_is_refused_at_once() -> None:
    """CI-19."""
    monitor = started(1)
    assert not monitor.register(request(1), [5])


def test_a_stopped_monitor_refuses_and_a_closed_one_for_good() -> None:
    """CI-10, CI-19."""
    monitor: TransactionMonitor[int] = TransactionMonitor()
    with pytest.raises(PartitionInactiveError):
        monitor.register(request(1), [1])
    monitor.start()
    assert monitor.register(request(1), [1])
    assert monitor.stop() == [1]
    assert str(monitor.state) == str(MonitorState.STOPPED)
    monitor.start()
    assert monitor.register(request(2), [2])
    assert monitor.close() == [2]
    monitor.start()
    assert monitor.stop() == []
    with pytest.raises(ClientClosedError):
        monitor.register(request(3), [3])
    assert str(monitor.state) == str(MonitorState.CLOSED)


def test_what_another_generation_has_sent_is_not_in_the_run_and_fails_by_what_comes_after() -> None:
    """CI-16: numbers go on across generations."""
    monitor = started(1)
    older = request(2)._replace(generation=Generation(0))
    monitor.register(older, [2])
    monitor.register(request(3), [3])
    monitor.register(request(4)._replace(generation=Generation(7)), [4])
    assert monitor.commit(request(1), 4) == ([2], [1, None, 3])
    assert monitor.count == 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["register", "commit", "abort", "flush"]),
        st.integers(1, 30),
        st.integers(1, 6),
    )
)


@given(ACTIONS)
def test_it_agrees_with_a_plain_list(actions: list[tuple[str, int, int]]) -> None:
    monitor = started()
    pending: list[int] = []
    next_number = 1
    for action, number, count in actions:
        if action == "register":
            numbers = range(next_number, next_number + count)
            next_number += count + (number == 1)
            assert monitor.register(request(numbers[0]), numbers)
            pending += numbers
        elif action == "commit":
            run = [each for each in pending if number <= each < number + count]
            last = max(run, default=0)
            failed = [each for each in pending if each < last and each not in run]
            committed = [each if each in run else None for each in range(number, last + 1)]
            assert monitor.commit(request(number), count) == (failed, committed)
            pending = [each for each in pending if each > last]
        elif action == "abort":
            assert monitor.abort(request(number)) == (number if number in pending else None)
            pending = [each for each in pending if each != number]
        else:
            assert monitor.flush(request(number)) == [each for each in pending if each <= number]
            pending = [each for each in pending if each > number]
        monitor.check_invariants()
        assert monitor.count == len(pending)
