"""When small appends wait for others to share a batch with, by value and against plain bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import append, mount, request_id, tid, together
from tests.server.partition_bench import feed_of, mounted
from waltz.server.appends.gathering import (
    GATHERED_BYTES_MAX,
    PATIENCE_BATCHES,
    PATIENCE_SECONDS_MAX,
    RETURNS_MIN,
    Gathering,
)
from waltz.wire.client_protocol import FlushRequest, FlushResponse

BATCH_SECONDS = 0.001


class Server:
    """Hands on what need not wait, and decides it when told to."""

    def __init__(self) -> None:
        self.gathering = Gathering()
        self.now = 0.0
        self.held: list[int] = []
        self.stored: list[int] = []
        """The connection of each append."""

    def arrive(self, connection: int, count: int = 1, size: int = 100) -> int:
        """Return how many appends go to the store now."""
        self.gathering.arrive(connection, count, count * size, self.now)
        self.held += [connection] * count
        return self.look()

    def look(self) -> int:
        goes = not self.gathering.waits(self.now)
        self.gathering.check_invariants()
        if not (goes and self.held):
            return 0
        gone, self.held = self.held, []
        self.gathering.release()
        self.gathering.store(len(gone), self.now)
        self.stored += gone
        return len(gone)

    def decide(self, count: int | None = None) -> int:
        """Return how many appends go to the store after `count` were decided; None: all."""
        decided = self.stored[:count]
        del self.stored[:count]
        if decided:
            self.gathering.decide(len(decided), self.now)
            for connection in decided:
                self.gathering.tell(connection, 1, self.now)
        return self.look()

    def wait(self, seconds: float) -> int:
        self.now += seconds
        return self.look()

    def settle(self) -> None:
        """Decide all, each batch after its time."""
        while self.stored or self.held:
            self.wait(BATCH_SECONDS)
            self.decide()


def acquainted(*connections: int) -> Server:
    """A server to which these connections have come back in time so often that they are expected,
    and which has told them of all their appends just now."""
    server = Server()
    for _ in range(50):  # until the mean duration of a batch has settled
        for connection in connections:
            server.arrive(connection)
        server.settle()
    return server


def test_appends_of_one_connection_never_wait_for_others() -> None:
    server = acquainted(1)
    for _ in range(3):
        assert server.arrive(1) == 1
        server.wait(BATCH_SECONDS)
        server.decide()
    assert server.arrive(1, 32) == 32
    assert server.arrive(1, 32) == 32, "a second batch, as large as what the store has"


def test_small_appends_wait_while_the_store_has_more_of_them() -> None:
    server = Server()
    assert server.arrive(1, 10) == 10
    assert server.arrive(2, 4) == 0
    assert server.arrive(3, 5) == 0
    assert server.arrive(4, 1) == 10
    assert server.arrive(5) == 0
    assert server.decide(5) == 0
    assert server.decide() == 1


def test_connections_that_were_told_together_share_the_next_batch() -> None:
    server = acquainted(1, 2, 3)
    assert server.arrive(2) == 0
    assert server.wait(BATCH_SECONDS) == 0
    assert server.arrive(1) == 0
    assert server.arrive(3) == 3


def test_nobody_waits_longer_than_two_batches_for_a_connection_that_does_not_come() -> None:
    server = acquainted(1, 2)
    arrived_at = server.now
    assert server.arrive(1) == 0
    deadline = server.gathering.deadline
    assert deadline is not None
    assert 0 < deadline - arrived_at <= PATIENCE_BATCHES * BATCH_SECONDS * 1.01
    assert server.wait(deadline - arrived_at) == 1
    server.wait(BATCH_SECONDS)
    server.decide()
    assert server.arrive(1) == 1, "connection 2 was late, so it is not expected any more"


def test_a_connection_that_was_late_is_expected_again_once_it_has_been_in_time() -> None:
    server = acquainted(1, 2)
    server.arrive(1)
    server.wait(PATIENCE_SECONDS_MAX)
    server.decide()
    server.arrive(2)
    for number in range(1, RETURNS_MIN + 1):
        server.settle()
        assert server.arrive(1) == 1, f"connection 2 has been in time {number - 1} times"
        server.arrive(2)
    server.settle()
    assert server.arrive(1) == 0


def test_a_connection_that_is_gone_is_not_expected() -> None:
    server = acquainted(1, 2)
    assert server.arrive(1) == 0
    server.gathering.forget(2)
    assert server.look() == 1
    server.gathering.forget(1)
    assert server.decide() == 0
    assert server.arrive(3) == 1


def test_large_appends_do_not_wait() -> None:
    server = acquainted(1, 2)
    assert server.arrive(1, 10, GATHERED_BYTES_MAX // 20) == 0
    assert server.arrive(3, 10, GATHERED_BYTES_MAX // 10) == 20


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(1, 4), st.integers(1, 5)),
            st.tuples(st.just("decide"), st.integers(1, 9), st.none()),
            st.tuples(st.just("wait"), st.integers(1, 30), st.none()),
            st.tuples(st.just("forget"), st.integers(1, 4), st.none()),
        ),
        max_size=60,
    )
)
def test_what_waits_goes_on_with_a_decision_or_in_time(steps: list[tuple[str, int, int]]) -> None:
    """Whatever came before: once the store has decided all it has, what waits is gone after the
    longest patience, and no wait has no end."""
    server, gone = Server(), set()
    for name, number, count in steps:
        match name:
            case "arrive" if number not in gone:
                server.arrive(number, count)
            case "decide":
                server.decide(number)
            case "wait":
                server.wait(number * 0.001)
            case "forget":
                gone.add(number)
                server.gathering.forget(number)
                server.look()
        waiting = bool(server.held)
        assert (
            not waiting
            or server.gathering.deadline is not None
            or (len(server.held) < len(server.stored))
        )
    while server.stored:
        server.decide()
    server.wait(PATIENCE_SECONDS_MAX)
    assert len(server.held) < len(server.stored) or not server.held
    server.decide()
    assert not server.held


def test_a_partition_hands_on_what_has_waited_when_its_deadline_comes() -> None:
    bench = mounted()
    bench.say(mount(client=8), connection=2, client=8)
    sequence = 1
    for _ in range(RETURNS_MIN + 1):
        sequence += 1
        for connection, client in ((1, 7), (2, 8)):
            new = together(append(sequence, bench.mark, client=client))
            bench.say(new, connection=connection, client=client, version=5)
        while bench.store:
            bench.now += BATCH_SECONDS
            bench.commit()
    bench.say(together(append(sequence + 1, bench.mark)), version=5)
    assert bench.store == []
    deadline = bench.machine.deadline
    assert deadline is not None
    assert deadline <= bench.now + PATIENCE_SECONDS_MAX
    bench.now = deadline
    bench.step()
    assert bench.stored() == [sequence + 1]


def test_a_flush_waits_for_appends_that_wait_for_others() -> None:
    bench = mounted()
    bench.say(together(append(2), append(3)))
    assert bench.say(together(append(4)), FlushRequest(request_id(7, 5))) == []
    assert bench.stored() == [2, 3]
    assert bench.commit() == {1: feed_of([2, 3], 0)}
    assert bench.stored() == [4]
    told = bench.commit()[1]
    assert FlushResponse(request_id(7, 5), tid(2)) in told


def test_nobody_waits_for_a_connection_that_always_takes_its_time() -> None:
    server = acquainted(1)
    for _ in range(10):
        for _ in range(4):
            assert server.arrive(1) == 1
            server.settle()
        server.arrive(2)
        server.settle()
