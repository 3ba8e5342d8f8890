"""Rows under way: whatever becomes of them, each is in the log once in the end, or, of those that
depend on a state, not at all."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from waltz.client.appends import bulk_appends
from waltz.client.appends.bulk_appends import BULK_RETRY_SECONDS, BulkAppends
from waltz.client.appends.submission import Submission
from waltz.client.bulk import BulkRows, ManyAppends
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


def last(number: int) -> RequestId:
    return RequestId(ClientId(1), Generation(2), P, number)


def many(count: int, *, locked: bool = False, locks_as_of: int | None = None) -> Submission:
    data = [number.to_bytes(2) for number in range(count)]
    locks = {"write_locks": np.arange(count, dtype=np.int32)} if locked else {}
    context = ManyAppends(0, BulkRows(data, **locks), locks_as_of=locks_as_of)
    submission = Submission(1, context, P)
    assert submission.execute(NOTHING)
    return submission


class Server:
    """Takes messages, and decides them as `random` has it."""

    def __init__(self, random: Random, *, knows_batches: bool) -> None:
        self.random = random
        self.knows_batches = knows_batches
        self.log: list[bytes] = []
        self.arrived: list[tuple[int, bytes]] = []
        self.taken = 0
        """The number of appends that arrived, each as often as it did."""
        self.beaten_by = NOTHING
        self.may_leave_rows_unlooked_at = True
        self.number = 0
        self.mark = NOTHING
        self.now = 0.0
        self.appends = BulkAppends()

    def turn(self) -> None:
        messages, self.number = self.appends.take_messages(
            last(self.number), self.mark, self.now, knows_batches=self.knows_batches
        )
        for message in messages:
            first = message.request_id.sequence_number
            self.arrived += enumerate(message.appends.bodies.data, first)
            self.taken += len(message.appends)
        self.appends.check_invariants()
        assert [number for number, _ in self.arrived] == sorted(n for n, _ in self.arrived)
        count = self.random.randint(0, min(5, len(self.arrived)))
        decided, self.arrived = self.arrived[:count], self.arrived[count:]
        choice = self.random.random()
        if not decided:
            if not self.arrived:  # a flush says that nothing of what is under way will come
                self.appends.fail_before(self.number + 1)
        elif choice < 0.2:  # refused for locks, by something that is applied later
            at = TransactionId(len(self.log) + self.random.randint(0, 2))
            self.log += [b"another"] * (at + 1 - len(self.log))
            self.beaten_by = max(self.beaten_by, at)
            self.appends.hold([number for number, _ in decided], [at] * count)
        elif choice < 0.3 and self.may_leave_rows_unlooked_at:
            self.appends.refuse(decided[0][0], count, self.now)
        elif choice < 0.4:  # nothing comes of them, and the next ones show it
            if not self.arrived:
                self.appends.fail_before(decided[-1][0] + 1)
            elif self.random.random() < 0.5:
                self.appends.fail_before(self.arrived[0][0])
        else:
            self._commit(decided)
        self.appends.check_invariants()
        if self.random.random() < 0.5:
            self.mark = TransactionId(len(self.log) - 1)
        self.appends.release(self.mark)
        self.now += self.random.choice((0.0, BULK_RETRY_SECONDS))

    def _commit(self, decided: list[tuple[int, bytes]]) -> None:
        """The feed shows runs of dense numbers."""
        while decided:
            first = decided[0][0]
            run = [data for at, (n, data) in enumerate(decided) if n == first + at]
            self.appends.commit(first, len(run), len(self.log))
            self.log += run
            decided = decided[len(run) :]


@pytest.mark.parametrize("knows_batches", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_in_the_log_once_and_where_it_says(
    seed: int, knows_batches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B-3, PM-44: under refusals, failures and locks, with either bound of locked rows."""
    random = Random(seed)
    monkeypatch.setattr(bulk_appends, "BULK_ROWS_IN_FLIGHT_MAX", random.randint(1, 20))
    monkeypatch.setattr(bulk_appends, "BULK_LOCKED_ROWS_IN_FLIGHT_MAX", random.randint(4, 20))
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", random.randint(1, 5))
    server = Server(random, knows_batches=knows_batches)
    submissions = [many(random.randint(1, 40), locked=random.random() < 0.5) for _ in range(2)]
    finished: list[Submission] = []
    for submission in submissions:
        server.appends.add(submission)
    for _ in range(10_000):
        server.turn()
        finished += server.appends.take_finished(server.mark)
        if len(finished) == len(submissions):
            break
    assert sorted(map(id, finished)) == sorted(map(id, submissions))
    for submission in submissions:
        context = submission.context
        assert isinstance(context, ManyAppends)
        ids = context.transaction_ids.tolist()
        assert len(set(ids)) == len(ids)
        assert [server.log[each] for each in ids] == context.rows.data
        assert submission.transaction_id == max(ids) <= server.mark
    assert len(server.log) - server.log.count(b"another") == sum(
        len(each.context.rows) for each in submissions if isinstance(each.context, ManyAppends)
    )
    assert (server.appends.under_way.count, server.appends.last_sent) == (0, None)


def sent(appends: BulkAppends, mark: int = -1, now: float = 0.0) -> list[int]:
    messages, _ = appends.take_messages(last(10), TransactionId(mark), now)
    return [len(each.appends) for each in messages]


def test_so_many_rows_are_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-13: what is under way is bounded, and comes in whole batches."""
    monkeypatch.setattr(bulk_appends, "BULK_ROWS_IN_FLIGHT_MAX", 10)
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", 4)
    appends = BulkAppends()
    appends.add(many(20))
    assert sent(appends) == [4, 4]
    assert appends.last_sent == last(18)
    appends.commit(11, 1, 0)
    assert sent(appends) == []
    appends.commit(12, 1, 1)
    assert sent(appends) == [4]


def test_locked_rows_count_until_they_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_appends, "BULK_ROWS_IN_FLIGHT_MAX", 8)
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", 2)
    appends = BulkAppends()
    appends.add(many(20, locked=True))
    assert sent(appends) == [2, 2, 2, 2]
    appends.commit(11, 7, 0)
    assert sent(appends, mark=-1) == []
    assert sent(appends, mark=1) == [2]


def test_rows_that_need_more_room_are_not_overtaken_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Locked rows wait for others to be applied; what comes later waits behind them."""
    monkeypatch.setattr(bulk_appends, "BULK_ROWS_IN_FLIGHT_MAX", 10)
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", 5)
    appends = BulkAppends()
    for each in (many(10), many(4, locked=True), many(10)):
        appends.add(each)
    assert sent(appends) == [5, 5]
    appends.commit(11, 5, 0)
    assert sent(appends, mark=-1) == []
    assert sent(appends, mark=4) == [4]


def test_small_submissions_wait_for_each_other_while_one_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    appends = BulkAppends()
    for each in (many(10), many(9)):
        appends.add(each)
        sent(appends)
    assert appends.under_way.count == 10, "the second one is smaller than what is under way"
    appends.add(many(1))
    assert sent(appends) == [9, 1]
    appends.add(many(19))
    assert sent(appends) == []
    appends.commit(11, 10, 0)
    assert sent(appends) == [19]
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", 5)
    appends.add(many(5))
    assert sent(appends) == [5], "a whole batch never waits"
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_BYTES_MAX", 2 * 28)
    appends.add(many(1))
    assert sent(appends) == []
    appends.add(many(1))
    assert sent(appends) == [1, 1], "nor does one by its bytes"


def test_rows_that_have_begun_are_sent_to_their_end_and_an_older_server_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", 8)
    appends = BulkAppends()
    appends.add(many(17))
    assert sent(appends) == [8, 8, 1]
    appends.add(many(1))
    assert sent(appends) == []
    (message,), _ = appends.take_messages(last(30), NOTHING, 0.0, knows_batches=False)
    assert len(message.appends) == 1


def test_fewer_locked_rows_are_sent_to_an_older_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-13: the lock table of the original does not grow with them."""
    monkeypatch.setattr(bulk_appends, "BULK_LOCKED_ROWS_IN_FLIGHT_MAX", 8)
    appends = BulkAppends()
    appends.add(many(20, locked=True))
    appends.add(many(20))
    (*messages,), _ = appends.take_messages(last(10), NOTHING, 0.0, knows_batches=False)
    assert sum(len(each.appends) for each in messages) == 8
    newer = BulkAppends()
    newer.add(many(20, locked=True))
    assert sent(newer) == [20]


def test_rows_of_a_submission_that_has_ended_are_not_sent() -> None:
    appends = BulkAppends()
    ended = many(3)
    assert ended.claim_verdict()
    appends.add(ended)
    assert sent(appends) == []
    assert appends.take_finished(NOTHING) == []
    assert appends.bulks == []


def test_the_submission_of_a_row_can_be_found() -> None:
    appends = BulkAppends()
    one, other = many(2), many(2)
    appends.add(one)
    appends.add(other)
    assert sent(appends) == [2, 2]
    assert [appends.owner(number) for number in (11, 14, 15)] == [one, other, None]
    appends.clear()
    assert appends.owner(11) is None


@pytest.mark.parametrize("seed", range(30))
def test_rows_that_depend_on_a_state_are_sent_once_and_in_the_log_or_have_no_id(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(bulk_appends, "BULK_BATCH_ROWS_MAX", random.randint(1, 5))
    server = Server(random, knows_batches=random.random() < 0.5)
    server.may_leave_rows_unlooked_at = False
    submission = many(random.randint(1, 40), locked=True, locks_as_of=random.randint(-1, 9))
    server.appends.add(submission)
    finished: list[Submission] = []
    while not finished:
        server.turn()
        finished = server.appends.take_finished(server.mark)
    context = submission.context
    assert isinstance(context, ManyAppends)
    ids = dict(zip(context.rows.data, context.transaction_ids.tolist(), strict=True))
    assert server.taken == len(ids)
    assert {data for data, each in ids.items() if each != NOTHING} == {*server.log} - {b"another"}
    assert all(server.log[each] == data for data, each in ids.items() if each != NOTHING)
    assert server.beaten_by <= server.mark, "the next look at the state shows what beat them"


def test_rows_that_depend_on_a_state_are_compared_with_it_or_with_an_older_one() -> None:
    for as_of, mark, compared_with in ((3, 7, 3), (7, 3, 3), (-1, 7, -1)):
        appends = BulkAppends()
        appends.add(many(2, locked=True, locks_as_of=as_of))
        (message,), _ = appends.take_messages(last(10), TransactionId(mark), 0.0)
        assert message.appends.client_high_water_marks.tolist() == [compared_with] * 2


def test_rows_that_were_not_looked_at_are_compared_with_the_same_state_again() -> None:
    appends = BulkAppends()
    appends.add(many(1, locked=True, locks_as_of=3))
    assert sent(appends, mark=3) == [1]
    appends.refuse(11, 1, 0.0)
    (message,), _ = appends.take_messages(last(11), TransactionId(9), BULK_RETRY_SECONDS)
    assert message.appends.client_high_water_marks.tolist() == [3]


def test_a_denied_submission_says_whether_a_row_of_it_is_in_the_log() -> None:
    """A row that was refused for a lock is not in the log."""
    for is_committed in (False, True):
        appends = BulkAppends()
        submission = many(3, locked=True, locks_as_of=-1)
        appends.add(submission)
        assert sent(appends) == [3]
        if is_committed:
            appends.commit(11, 1, 0)
        else:
            appends.hold([11], [0])
        assert appends.deny(12, 2) == [(submission, is_committed)]
