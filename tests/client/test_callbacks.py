"""SqlCallbacks on SQLite; several threads stand for several processes on one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, OperationalError

from waltz.client.callbacks import NoCallbacks, SqlCallbacks, WaltzClientCallbacks
from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError, PostponedError
from waltz.limits import APPLY_RETRY_SECONDS_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P0 = PartitionId(0)
APPLIED = sql.Table(
    "applied",
    sql.MetaData(),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("by", sql.String),
)


def transactions(first: int, end: int) -> list[Transaction]:
    request_id = RequestId(ClientId(1), Generation(1), P0, 1)
    return [
        Transaction(request_id, TransactionId(number), number, b"", lambda _, __: b"")
        for number in range(first, end)
    ]


class Applying(SqlCallbacks):
    """Inserts a row per transaction; `failures` are raised by the next calls."""

    def __init__(
        self,
        engine: sql.Engine,
        name: str = "me",
        preferred: Sequence[int] | None = None,
        patience_seconds: float = 1.0,
    ) -> None:
        super().__init__(engine, preferred_partitions=preferred, patience_seconds=patience_seconds)
        self.name = name
        self.failures: list[Exception] = []
        self.attempts: list[int] = []

    def apply(self, connection: sql.Connection, transactions: Sequence[Transaction]) -> None:
        connection.execute(
            APPLIED.insert(),
            [{"number": each.transaction_id, "by": self.name} for each in transactions],
        )
        if self.failures:
            raise self.failures.pop(0)

    def wants_data(self, transaction: Transaction) -> bool:
        return transaction.header % 2 == 0

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        self.attempts.append(attempt)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sql.Engine]:
    engine = sql.create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 30})
    APPLIED.metadata.create_all(engine)
    yield engine
    engine.dispose()


def rows(engine: sql.Engine) -> list[int]:
    with engine.connect() as connection:
        return [row.number for row in connection.execute(APPLIED.select().order_by("number"))]


def ids(chosen: Sequence[Transaction]) -> list[int]:
    return [each.transaction_id for each in chosen]


def away() -> OperationalError:
    return OperationalError("select", {}, Exception("database is away"))


def test_the_first_use_of_a_partition_makes_its_row() -> None:
    """PM-51."""
    engine = sql.create_engine("sqlite://")
    callbacks = Applying(engine)
    assert callbacks.get_client_high_water_mark(P0) == -1
    with engine.connect() as connection:
        (row,) = connection.execute(callbacks.table.select())
    assert tuple(row) == (0, -1)
    assert callbacks.get_client_high_water_mark(P0) == -1
    engine.dispose()


def test_change_and_mark_move_in_one_database_transaction(engine: sql.Engine) -> None:
    """PM-50, PM-52."""
    callbacks = Applying(engine)
    assert callbacks.get_client_high_water_mark(P0) == -1
    callbacks.failures = [ValueError("after the insert")]
    with pytest.raises(ValueError, match="after the insert"):
        callbacks.apply_transactions(transactions(0, 5))
    assert rows(engine) == []
    assert callbacks.get_client_high_water_mark(P0) == -1
    callbacks.apply_transactions(transactions(0, 5))
    assert rows(engine) == [0, 1, 2, 3, 4]
    assert Applying(engine).get_client_high_water_mark(P0) == 4


def test_what_another_process_has_applied_is_not_applied_again(engine: sql.Engine) -> None:
    one, two = Applying(engine, "one"), Applying(engine, "two")
    assert one.get_client_high_water_mark(P0) == two.get_client_high_water_mark(P0) == -1
    one.apply_transactions(transactions(0, 3))
    assert ids(two.choose_prefetch(transactions(0, 6))) == [4]
    two.apply_transactions(transactions(0, 6))
    one.apply_transactions(transactions(3, 6))
    assert rows(engine) == [0, 1, 2, 3, 4, 5]


def test_a_mark_that_moved_after_it_was_read_is_noticed_by_the_guard(engine: sql.Engine) -> None:
    """PM-52."""
    one, two = Applying(engine, "one"), Applying(engine, "two")
    for each in (one, two):
        each.get_client_high_water_mark(P0)
        each.choose_prefetch(transactions(0, 3))
    one.apply_transactions(transactions(0, 2))
    two.apply_transactions(transactions(0, 3))
    assert rows(engine) == [0, 1, 2]


def test_processes_that_race_apply_each_transaction_once(engine: sql.Engine) -> None:
    """PM-30, PM-52: three processes, batches cut differently."""
    errors: list[BaseException] = []

    def follow(callbacks: Applying, size: int) -> None:
        try:
            position = int(callbacks.get_client_high_water_mark(P0)) + 1
            while position < 120:
                batch = transactions(position, min(position + size, 120))
                try:
                    callbacks.choose_prefetch(batch)
                    callbacks.apply_transactions(batch)
                except PostponedError:
                    continue
                position += len(batch)
        except BaseException as error:
            errors.append(error)

    threads = [
        Thread(target=follow, args=(Applying(engine, f"{size}"), size)) for size in (1, 3, 7)
    ]
    Applying(engine).get_client_high_water_mark(P0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert rows(engine) == list(range(120))
    assert Applying(engine).get_client_high_water_mark(P0) == 119


def test_a_partition_that_is_not_preferred_is_left_to_others_for_a_while(
    engine: sql.Engine,
) -> None:
    mine = Applying(engine, "mine", preferred=[0])
    other = Applying(engine, "other", preferred=[1], patience_seconds=0.2)
    mine.get_client_high_water_mark(P0)
    waited = patience(lambda: other.choose_prefetch(transactions(0, 4)))
    assert 0.2 <= waited <= 0.3
    other.apply_transactions(transactions(0, 4))
    assert rows(engine) == [0, 1, 2, 3]
    # Nobody else was there, so it goes on at once ...
    assert ids(other.choose_prefetch(transactions(4, 6))) == [4]
    # ... until somebody is.
    mine.choose_prefetch(transactions(4, 5))
    mine.apply_transactions(transactions(4, 5))
    with pytest.raises(PostponedError, match="left to another process"):
        other.choose_prefetch(transactions(4, 6))


def test_what_another_process_has_applied_needs_no_patience(engine: sql.Engine) -> None:
    mine, other = Applying(engine, preferred=[0]), Applying(engine, preferred=[])
    mine.get_client_high_water_mark(P0)
    mine.apply_transactions(transactions(0, 4))
    assert other.choose_prefetch(transactions(0, 4)) == []
    other.apply_transactions(transactions(0, 4))


def patience(choose: Callable[[], object]) -> float:
    waited = 0.0
    while True:
        try:
            choose()
        except PostponedError as error:
            waited += error.delay_seconds
        else:
            return waited


def test_a_database_that_is_away_is_tried_again_ever_later(engine: sql.Engine) -> None:
    """PM-54: rolled back, then repeated."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.failures = [away() for _ in range(13)]
    delays = []
    for _ in range(13):
        with pytest.raises(PostponedError, match="database is away") as raised:
            callbacks.apply_transactions(transactions(0, 2))
        delays.append(raised.value.delay_seconds)
    assert delays[:3] == [0.01, 0.02, 0.04]
    assert delays[-1] == APPLY_RETRY_SECONDS_MAX
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]


def test_what_the_applications_statement_violates_is_its_error(engine: sql.Engine) -> None:
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with engine.begin() as connection:
        connection.execute(APPLIED.insert().values(number=1, by="before"))
    with pytest.raises(IntegrityError):
        callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [1]


def test_a_mark_that_cannot_be_read_is_postponed_and_counted(tmp_path: Path) -> None:
    """PM-55."""
    folder = tmp_path / "missing"
    engine = sql.create_engine(f"sqlite:///{folder / 'app.db'}")
    callbacks = Applying(engine)
    for _ in range(5):
        with pytest.raises(PostponedError):
            callbacks.get_client_high_water_mark(P0)
    assert callbacks.attempts == [1, 2, 3, 4, 5]
    folder.mkdir()
    assert callbacks.get_client_high_water_mark(P0) == -1
    engine.dispose()


def test_a_database_that_was_set_back_is_an_error(engine: sql.Engine) -> None:
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises(LocalProtocolError, match="at transaction -1 of partition 0; expected 8"):
        callbacks.apply_transactions(transactions(9, 11))


def test_callbacks_need_a_way_to_apply() -> None:
    class Nothing(WaltzClientCallbacks):
        def get_client_high_water_mark(self, partition_id: PartitionId) -> int:
            return -1

    with pytest.raises(LocalProtocolError, match="Nothing cannot apply transaction 0: define"):
        Nothing().apply_transaction(transactions(0, 1)[0])


def test_a_client_that_only_writes_applies_nothing() -> None:
    callbacks = NoCallbacks()
    assert callbacks.get_client_high_water_mark(P0) is None  # type: ignore[func-returns-value]
    callbacks.apply_transactions(transactions(0, 3))
    callbacks.uncaught_exception(P0, TransactionId(0), ValueError())
