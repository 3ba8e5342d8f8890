"""Callbacks that apply the log with SQLAlchemy's object-relational mapper.

Owns the session in which an application makes its changes: it is bound to the connection of
`SqlCallbacks`, so that they are in the database transaction that moves the mark.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, final

from waltz.client.databases.marked_callbacks import CALLBACK_PATIENCE_SECONDS
from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.client.databases.sql_statements import not_allowed
from waltz.client.databases.stored_marks import MARKS_TABLE
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError

try:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.event import listen
    from sqlalchemy.orm import Session, SessionTransaction, sessionmaker
except ImportError as error:
    raise ImportError(
        "waltz.ext.sqlalchemy needs SQLAlchemy, which is not installed: pip install"
        " 'waltz-log[sql]'"
    ) from error

if TYPE_CHECKING:
    from waltz.client.databases.idempotency_keys import IdempotencyKeys


class SessionCallbacks(SqlCallbacks):
    """Applies the log with sessions of a `sessionmaker`; as `SqlCallbacks` in everything else.

    A subclass has `apply_in_session(session, transactions)`, where `SqlCallbacks` has `apply`.
    """

    def __init__(
        self,
        sessions: sessionmaker[Any],
        *,
        table_name: str = MARKS_TABLE,
        preferred_partitions: Collection[int] | None = None,
        patience_seconds: float = CALLBACK_PATIENCE_SECONDS,
        keys: IdempotencyKeys | None = None,
    ) -> None:
        """`sessions` are bound to one engine; the others as for `SqlCallbacks`. Does not connect
        yet. Raises ConfigurationError: the sessions are bound to no engine, or to several;
        LocalProtocolError: the keys are of another engine."""
        engine = sessions.kw.get("bind")
        if not isinstance(engine, Engine) or sessions.kw.get("binds"):
            raise ConfigurationError(
                "SessionCallbacks needs a sessionmaker that is bound to one engine, such as"
                " sessionmaker(create_engine(url)): the mark and the changes are in one database"
                " transaction"
            )
        super().__init__(
            engine,
            table_name=table_name,
            preferred_partitions=preferred_partitions,
            patience_seconds=patience_seconds,
            keys=keys,
        )
        self._sessions = sessions

    @abstractmethod
    def apply_in_session(self, session: Session, transactions: Sequence[Transaction]) -> None:
        """Make the changes of `transactions`, dense and in order, in `session`.

        The caller flushes the session and commits the database transaction; on any error it is
        rolled back and everything is repeated, in a new session. `session.commit` does no more
        than flush; `session.rollback` and `session.close` are refused, as they would leave the mark
        moved and the changes not made: use `session.begin_nested`.
        """

    @final
    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        with self._sessions(bind=connection, join_transaction_mode="create_savepoint") as session:
            ends = _Ends(session)
            self.apply_in_session(session, transactions)
            if ends.without_commit:
                raise not_allowed("session.rollback() or session.close()")
            session.commit()


class _Ends:
    """Counts the ends of a session's outermost transactions that were no commits: rollbacks, and
    what `close` and `with session:` drop. A flush that fails ends an inner transaction only."""

    def __init__(self, session: Session) -> None:
        self.without_commit = 0
        self._has_committed = False
        listen(session, "after_commit", self._note_commit)
        listen(session, "after_transaction_end", self._note_end)

    def _note_commit(self, _: Session) -> None:
        self._has_committed = True

    def _note_end(self, _: Session, ended: SessionTransaction) -> None:
        if ended.parent is None and not self._has_committed:
            self.without_commit += 1
        self._has_committed = False
