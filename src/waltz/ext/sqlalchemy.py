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
        than flush; `session.rollback` is refused, as it would leave the mark moved and the changes
        not made: use `session.begin_nested`.
        """

    @final
    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        with self._sessions(bind=connection, join_transaction_mode="create_savepoint") as session:
            rolled_back: list[SessionTransaction] = []

            def note(_: Session, ended: SessionTransaction) -> None:
                if not ended.nested:
                    rolled_back.append(ended)

            listen(session, "after_soft_rollback", note)
            self.apply_in_session(session, transactions)
            if rolled_back:
                raise not_allowed("session.rollback()")
            session.commit()
