"""A Django project for tests, in this process: its settings, its databases, its application.

Owns the aliases of databases that tests make, and `DjangoApplying`, which is `Applying` of the
tests of SqlCallbacks on Django's connection: the same tests run with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pymysql  # type: ignore[import-untyped]
import sqlalchemy as sql

pymysql.install_as_MySQLdb()

from django.conf import settings  # noqa: E402

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "waltz.ext.django",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        WALTZ={"CLUSTER": "127.0.0.1:1"},
        USE_TZ=True,
        ROOT_URLCONF="tests.ext.django_project",
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of the tests",
    )
    import django

    django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.db.utils import OperationalError  # noqa: E402

from tests.client.sql_applications import APPLIED  # noqa: E402
from waltz.client.databases.sql_tables import marks_table  # noqa: E402
from waltz.client.transaction import Transaction  # noqa: E402
from waltz.ext.django.django_callbacks import DjangoCallbacks  # noqa: E402

urlpatterns: list[Any] = []  # the checks of Django look for it

ENGINES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
}


def alias_of(url: sql.URL) -> str:
    """Return the alias of the database, which has the tables of Waltz."""
    alias = url.render_as_string()
    if alias not in connections.settings:
        found: dict[str, Any] = {
            "ENGINE": ENGINES[url.get_backend_name()],
            "NAME": url.database,
            "USER": url.username or "",
        }
        if url.get_backend_name() == "sqlite":
            found["OPTIONS"] = {"timeout": 60}
        if url.get_backend_name() == "postgresql":
            found["HOST"] = url.query["host"]
        if url.get_backend_name() == "mysql":
            found["OPTIONS"] = {"unix_socket": url.query["unix_socket"], "charset": "utf8mb4"}
        filled = connections.configure_settings({"default": {}, alias: found})
        connections.settings[alias] = filled[alias]
    return alias


def migrate(url: sql.URL) -> None:
    """Make the tables of Waltz in an empty database."""
    call_command("migrate", "waltz", database=alias_of(url), verbosity=0)


class OnDjango:
    """The methods of SQLAlchemy's connection that tests call, on Django's connection."""

    def __init__(self, alias: str, dialect: sql.Dialect) -> None:
        self._alias, self.dialect = alias, dialect

    @property
    def _dbapi_connection(self) -> Any:
        return connections[self._alias].connection

    def execute(self, statement: Any, rows: Sequence[dict[str, Any]] = ({},)) -> Any:
        cursor = connections[self._alias].cursor()
        for row in rows:
            filled = statement.values(row) if row else statement
            text = filled.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True})
            cursor.execute(str(text))
        return _Found(cursor.fetchall() if cursor.description else [])

    def exec_driver_sql(self, text: str) -> Any:
        cursor = connections[self._alias].cursor()
        cursor.execute(text)
        return _Found(cursor.fetchall() if cursor.description else [])

    def begin_nested(self) -> AbstractContextManager[None]:
        return transaction.atomic(using=self._alias)


class _Found(list[Any]):
    def all(self) -> list[Any]:
        return self

    def scalar_one(self) -> Any:
        ((value,),) = self
        return value


class DjangoApplying(DjangoCallbacks):
    """Inserts a row per transaction; `failures` are raised by the next calls."""

    def __init__(
        self,
        engine: sql.Engine,
        name: str = "me",
        preferred: Sequence[int] | None = None,
        patience_seconds: float = 1.0,
        also: Callable[[Any], object] = lambda connection: None,
    ) -> None:
        alias = alias_of(engine.url)
        super().__init__(
            using=alias, preferred_partitions=preferred, patience_seconds=patience_seconds
        )
        self.connection = OnDjango(alias, engine.dialect)
        self.table = marks_table("waltz_high_water_marks")
        self.name = name
        self.failures: list[Exception] = []
        self.attempts: list[int] = []
        self._also = also

    def apply(self, transactions: Sequence[Transaction]) -> None:
        self.connection.execute(
            APPLIED.insert(),
            [
                {"partition": each.partition_id, "number": each.transaction_id, "by": self.name}
                for each in transactions
            ],
        )
        self._also(self.connection)
        if self.failures:
            raise self.failures.pop(0)

    def wants_data(self, transaction: Transaction) -> bool:
        return transaction.header % 2 == 0

    def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
        self.attempts.append(attempt)


def away() -> OperationalError:
    return OperationalError("database is away")
