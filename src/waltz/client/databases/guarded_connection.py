"""The connection that an application gets to apply transactions. It may not control the
transaction.

Owns what is forbidden on it, because the high-water mark moves in the same database transaction:
ending that transaction or changing how it runs. Savepoints are allowed. Imported with SQLAlchemy
only. Row PM-56.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import IsolationLevel

from waltz.client.databases.sql_statements import forbidden_statement, not_allowed

FORBIDDEN_OPTIONS: Final = frozenset(
    {"isolation_level", "postgresql_readonly", "postgresql_deferrable", "schema_translate_map"}
)
"""Options that change how a transaction runs, or where its tables are."""


class GuardedConnection(Connection):
    """A SQLAlchemy connection whose transaction the application may not end."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._guarded = False
        self._is_mysql = engine.dialect.name in ("mysql", "mariadb")
        self._usual_isolation: IsolationLevel | None = None
        event.listen(self, "before_cursor_execute", self._check_statement)

    def __enter__(self) -> GuardedConnection:
        return self

    def make_serializable(self) -> None:
        """Make transactions serializable until the connection is closed."""
        if self._is_mysql:
            # SQLAlchemy restores the engine's autocommit there, and not the isolation level under
            # it.
            self._usual_isolation = self.get_isolation_level()
        self.execution_options(isolation_level="SERIALIZABLE")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Forbid statements and methods that end or change the transaction, until the block
        ends."""
        self._guarded = True
        try:
            yield
        finally:
            self._guarded = False

    def commit(self) -> None:
        self._check("commit")
        super().commit()

    def rollback(self) -> None:
        self._check("rollback")
        super().rollback()

    def close(self) -> None:
        self._check("close")
        if self._usual_isolation is not None and not (self.closed or self.invalidated):
            self._restore_isolation(self._usual_isolation)
        super().close()

    def begin(self) -> Any:
        self._check("begin")
        return super().begin()

    def begin_twophase(self, xid: Any | None = None) -> Any:
        self._check("begin_twophase")
        return super().begin_twophase(xid)

    def invalidate(self, exception: BaseException | None = None) -> None:
        if exception is None:  # otherwise SQLAlchemy itself ends it: the connection is lost
            self._check("invalidate")
        super().invalidate(exception)

    def detach(self) -> None:
        self._check("detach")
        super().detach()

    def get_transaction(self) -> Any:
        self._check("get_transaction")
        return super().get_transaction()

    @property
    def connection(self) -> Any:
        self._check("connection")
        return super().connection

    def execution_options(self, **opt: Any) -> Connection:
        for name in sorted(FORBIDDEN_OPTIONS & opt.keys()):
            self._check(f"execution_options({name}=...)")
        return super().execution_options(**opt)

    def _restore_isolation(self, usual: IsolationLevel) -> None:
        driver = self.connection.dbapi_connection
        assert driver is not None
        try:
            self.rollback()
            self.dialect.set_isolation_level(driver, usual)
        except (
            Exception
        ) as error:  # whatever is wrong with the connection, it must not be used again
            self.invalidate(error)

    def _check(self, what: str) -> None:
        if self._guarded:
            self._refuse(what)

    def _check_statement(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: object,
        context: object,
        is_many: bool,
    ) -> None:
        if not self._guarded:
            return
        found = forbidden_statement(statement, self.dialect.name)
        if found is not None:
            self._refuse(found)

    def _refuse(self, what: str) -> NoReturn:
        raise not_allowed(what)
