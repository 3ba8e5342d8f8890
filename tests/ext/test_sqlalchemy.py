"""SessionCallbacks: what a mapped class writes is in the database transaction of the mark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import waltz
from tests.client.sql_applications import P0, transactions
from tests.clusters import ROOT
from tests.ext.sites import SESSIONS
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError, LocalProtocolError
from waltz.ext.sqlalchemy import SessionCallbacks
from waltz.testing import InMemoryCluster


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(sql.String(40))


class Notes(SessionCallbacks):
    """Adds a note per transaction, then does what `also` says."""

    def __init__(
        self,
        engine: sql.Engine,
        also: Callable[[Session], object] = lambda session: None,
        keys: waltz.IdempotencyKeys | None = None,
    ) -> None:
        super().__init__(sessionmaker(engine, expire_on_commit=False), keys=keys)
        self._also = also

    def apply_in_session(self, session: Session, transactions: Sequence[Transaction]) -> None:
        session.add_all([Note(number=each.transaction_id, text="") for each in transactions])
        self._also(session)


def numbers(engine: sql.Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(sql.select(Note.number).order_by(Note.number)))


def applied(callbacks: Notes, first: int, end: int) -> None:
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(first, end))


@pytest.fixture(autouse=True)
def tables(engine: sql.Engine) -> None:
    Base.metadata.create_all(engine)


def test_objects_that_nobody_has_flushed_are_there_with_the_mark(engine: sql.Engine) -> None:
    applied(Notes(engine), 0, 3)
    assert numbers(engine) == [0, 1, 2]
    assert Notes(engine).get_client_high_water_mark(P0) == 2


def test_an_error_leaves_neither_objects_nor_mark(engine: sql.Engine) -> None:
    def fail(session: Session) -> None:
        session.flush()
        raise ValueError("after the flush")

    with pytest.raises(ValueError, match="after the flush"):
        applied(Notes(engine, fail), 0, 2)
    with pytest.raises(IntegrityError):
        applied(Notes(engine, lambda session: session.execute(same_again())), 0, 2)
    assert numbers(engine) == []
    assert Notes(engine).get_client_high_water_mark(P0) == -1


def same_again() -> sql.Insert:
    return sql.insert(Note).values(number=1, text="")


def test_a_commit_is_a_flush_and_a_savepoint_may_be_rolled_back(engine: sql.Engine) -> None:
    def savepoint(session: Session) -> None:
        session.commit()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(same_again())

    callbacks = Notes(engine, savepoint)
    applied(callbacks, 0, 2)
    assert numbers(engine) == [0, 1]


def test_a_flush_that_fails_behind_a_savepoint_ends_nothing(engine: sql.Engine) -> None:
    def flush(session: Session) -> None:
        session.flush()
        session.expunge_all()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.add(Note(number=1, text=""))

    applied(Notes(engine, flush), 0, 2)
    assert numbers(engine) == [0, 1]


def test_a_flush_that_fails_without_a_savepoint_applies_nothing(engine: sql.Engine) -> None:
    def flush(session: Session) -> None:
        session.flush()
        session.expunge_all()
        session.add(Note(number=1, text=""))
        with pytest.raises(IntegrityError):
            session.flush()

    with pytest.raises(PendingRollbackError):
        applied(Notes(engine, flush), 0, 2)
    assert numbers(engine) == []
    assert Notes(engine).get_client_high_water_mark(P0) == -1


@pytest.mark.parametrize("how", ["rollback", "close", "with", "COMMIT"])
def test_the_transaction_cannot_be_ended_in_the_session(engine: sql.Engine, how: str) -> None:
    """PM-56: a session that is rolled back would leave the mark moved and the changes not made."""

    def end(session: Session) -> None:
        session.flush()
        if how in ("rollback", "close"):
            getattr(session, how)()
        elif how == "with":
            with session:
                pass
        else:
            session.execute(sql.text(how))

    with pytest.raises(LocalProtocolError, match="not allowed while transactions are applied"):
        applied(Notes(engine, end), 0, 2)
    assert numbers(engine) == []
    assert Notes(engine).get_client_high_water_mark(P0) == -1


def test_sessions_that_may_write_elsewhere_are_refused(engine: sql.Engine) -> None:
    for sessions in (
        sessionmaker(),
        sessionmaker(engine, binds={Note: engine}),
        sessionmaker(engine.connect()),
    ):
        with pytest.raises(ConfigurationError, match="bound to one engine"):
            Bound(sessions)


class Bound(SessionCallbacks):
    def apply_in_session(self, session: Session, transactions: Sequence[Transaction]) -> None: ...


def test_keys_are_noted_with_the_objects_of_the_session(engine: sql.Engine) -> None:
    keys = waltz.IdempotencyKeys(engine)

    class Ask(waltz.KeyedContext):
        def execute_once(self, builder: waltz.TransactionBuilder) -> bool:
            builder.set_data(b"x")
            return True

    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Notes(engine, keys=keys))
        for _ in range(2):
            client.submit(Ask(keys, "one", 0))
            client.flush()
        client.wait_until_applied(timeout_seconds=60)
    assert numbers(engine) == [0]
    found = keys.find(0, "one")
    assert found is not None
    assert found.transaction_id == 0


def test_the_program_of_the_page_runs(engine: sql.Engine) -> None:
    with InMemoryCluster(for_tests=True) as cluster:

        class Opening:
            open_client = staticmethod(lambda _, callbacks: cluster.open_client(callbacks))

        names: dict[str, Any] = {"sessionmaker": sessionmaker, "engine": engine, "waltz": Opening}
        names["Note"] = lambda **found: Note(number=found["id"], text="")
        exec(SESSIONS, names)
        assert names["client"].append(0, b"x") == 0
        names["client"].wait_until_applied(timeout_seconds=60)
    assert numbers(engine) == [0]


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("sqlalchemy", "sqlalchemy", "sql"), ("django", "django", "django")],
)
def test_a_framework_that_is_missing_is_named_with_the_remedy(
    module: str, missing: str, extra: str
) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
import waltz
try:
    import waltz.ext.{module}
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"pip install 'waltz-log[{extra}]'" in done.stdout
