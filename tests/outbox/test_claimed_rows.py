"""The knowledge of a relay: whose transaction is a row of its claim, and what a context does."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import pytest

from waltz import (
    ClientId,
    PartitionId,
    PartitionLocalLock,
    RequestId,
    Transaction,
    TransactionBuilder,
    TransactionId,
)
from waltz.errors import CorruptionError, UnavailableError
from waltz.outbox.claim import ClaimedRow, RelayState
from waltz.outbox.claimed_rows import STRANGERS_MAX, ClaimedRows, RowContext, RowOutcome
from waltz.outbox.outbox_row import OutboxRow, row_lock
from waltz.types import Generation

P0 = PartitionId(0)
OWN, OTHER, STRANGER, LATER = map(ClientId, (1, 2, 3, 4))
OUTBOX = UUID(int=2)


def row(number: int, content: bytes = b"x") -> OutboxRow:
    return OutboxRow(number, "k", P0, 0, content)


class Following:
    """Claimed rows with what they ask for and say."""

    def __init__(self, *rows: OutboxRow) -> None:
        self.stops: list[Exception | None] = []
        self.asked = 0
        self.clients: Collection[ClientId] | None = (OTHER, OWN)
        self.state = RelayState(
            OUTBOX,
            UUID(int=1),
            1,
            {P0: TransactionId(5)},
            {P0: UUID(int=1)},
            (OTHER, OWN),
            tuple(ClaimedRow(each.row_id, P0, each.digest) for each in rows),
        )
        self.rows = ClaimedRows(self._read, self.stops.append)
        self.rows.begin(OWN, self.state)
        self.told: list[RowOutcome] = []

    def _read(self) -> Collection[ClientId] | None:
        self.asked += 1
        return self.clients

    def feed(self, client_id: ClientId, content: bytes = b"x") -> list[Transaction]:
        request_id = RequestId(client_id, Generation(1), P0, 1)
        each = Transaction(request_id, TransactionId(9), 0, content, lambda _, __: content)
        wanted = self.rows.choose_prefetch([each])
        self.rows.apply_transactions([each])
        return wanted

    def context(self, of: OutboxRow) -> RowContext:
        return RowContext(of, self.state, self.rows, self.told.append)


def test_rows_of_other_relays_are_found_in_the_order_of_their_ids() -> None:
    following = Following(row(1), row(2), row(3, b"y"))
    assert following.feed(OTHER)
    assert [following.rows.is_logged(each) for each in (1, 2, 3)] == [True, False, False]
    following.feed(OTHER)
    assert following.rows.is_logged(2)
    assert following.asked == 0
    assert following.stops == []


def test_what_the_relay_itself_appends_its_contexts_are_told() -> None:
    following = Following(row(1))
    assert following.feed(OWN) == []
    assert not following.rows.is_logged(1)


def test_of_a_stranger_the_database_is_asked_once_and_its_data_never_read() -> None:
    following = Following(row(1))
    assert following.feed(STRANGER) == following.feed(STRANGER) == []
    assert following.asked == 1
    assert not following.rows.is_logged(1)


def test_strangers_are_forgotten_before_they_fill_the_memory() -> None:
    following = Following(row(1))
    first, count = 1_000, 3 * STRANGERS_MAX
    for number in range(first, first + count):
        following.feed(ClientId(number))
    assert following.asked == count
    for _ in range(2):
        following.feed(ClientId(first))
        following.feed(ClientId(first + count - STRANGERS_MAX))
    assert following.asked == count + 1, "the newest are known"
    assert not following.rows.is_logged(1)


def test_a_stranger_that_has_taken_over_stops_the_relay() -> None:
    following = Following(row(1))
    following.clients = None
    following.feed(LATER)
    following.feed(LATER)
    assert following.stops == [None]
    assert not following.context(row(1)).execute(TransactionBuilder())


def test_a_row_of_the_relays_that_nobody_claimed_stops_it_with_a_reason() -> None:
    following = Following(row(1))
    following.feed(OTHER, b"unknown")
    (error,) = following.stops
    assert isinstance(error, CorruptionError)
    assert "was set back" in str(error)


def test_the_marks_and_histories_are_those_of_the_claim() -> None:
    rows = Following().rows
    assert rows.get_client_high_water_mark(P0) == 5
    assert rows.get_client_high_water_mark(PartitionId(1)) is None
    assert rows.get_client_history(P0) == UUID(int=1)
    rows.keep_client_history(P0, UUID(int=7), UUID(int=1))
    assert rows.get_client_history(P0) == UUID(int=7)


def test_a_row_is_appended_with_its_locks_and_one_of_its_own() -> None:
    lock = PartitionLocalLock("account", 1)
    given = OutboxRow(1, "k", P0, 4, b"x", "", (lock,), (), (), TransactionId(3))
    builder = TransactionBuilder()
    assert Following(given).context(given).execute(builder)
    assert (builder.header, builder.data, builder.locks_as_of) == (4, b"x", 3)
    assert builder.write_locks == (lock.hash, row_lock(OUTBOX, 1).hash)


def test_a_row_without_a_mark_is_tried_until_its_lock_is_free() -> None:
    following = Following(row(1))
    context = following.context(row(1))
    context.executed_at = TransactionId(9)
    context.on_lock_failure(TransactionId(12))
    assert context.execute(TransactionBuilder())
    assert following.told == []


@pytest.mark.parametrize(("executed_at", "is_final"), [(2, False), (3, True), (8, True)])
def test_a_refusal_counts_once_the_row_was_compared_with_its_mark(
    executed_at: int, is_final: bool
) -> None:
    """A client that was behind the mark was compared with less, and may be refused for nothing."""
    given = OutboxRow(
        1, "k", P0, 0, b"x", "", (PartitionLocalLock("account", 1),), mark=TransactionId(3)
    )
    following = Following(given)
    context = following.context(given)
    context.executed_at = TransactionId(executed_at)
    context.refused_lock = given.write_locks[0]
    context.on_lock_failure(TransactionId(8))
    assert context.execute(TransactionBuilder()) is not is_final
    if is_final:
        context.on_completion(False)
        (outcome,) = following.told
        assert outcome.refusal == (
            "lock account 1 was taken after transaction 3 of partition 0, by transaction 8 or"
            " before"
        )


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "a\nb"])
def test_a_reason_can_be_kept_whatever_the_name_of_the_lock(name: str) -> None:
    """PostgreSQL has no text with a zero, and no database one with half a pair of UTF-16."""
    lock = PartitionLocalLock(name, 1)
    given = OutboxRow(1, "k", P0, 0, b"x", "", (lock,), mark=TransactionId(3))
    following = Following(given)
    context = following.context(given)
    context.executed_at, context.refused_lock = TransactionId(8), lock
    context.on_lock_failure(TransactionId(8))
    context.on_completion(False)
    (outcome,) = following.told
    assert f"lock {name!r} 1 was taken" in str(outcome.refusal)
    assert str(outcome.refusal).isprintable()


def test_a_row_that_was_found_in_the_log_is_not_sent() -> None:
    following = Following(row(1))
    following.feed(OTHER)
    context = following.context(row(1))
    assert not context.execute(TransactionBuilder())
    context.on_completion(False)
    (outcome,) = following.told
    assert outcome.refusal is None


def test_the_relay_is_told_once_the_row_is_behind_its_mark() -> None:
    following = Following(row(1))
    context = following.context(row(1))
    context.on_completion(True)
    assert following.told == []
    context.on_application()
    assert [each.refusal for each in following.told] == [None]


def test_an_error_of_a_row_stops_the_relay_once() -> None:
    following = Following(row(1), row(2))
    for number in (1, 2):
        following.context(row(number)).on_exception(UnavailableError("away"))
    assert [str(each) for each in following.stops] == ["away"]
