"""`waltz parked`: transactions that an application could not apply, in the application's database.

Owns what is shown and asked. Talks to the database only, to no cluster, through
`client/databases/sql_tables.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from waltz.cli.output import output_console
from waltz.client.databases.stored_marks import MARKS_TABLE, parked_table_name
from waltz.errors import ConfigurationError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    import sqlalchemy

    from waltz.client.databases.sql_tables import ParkedTable, ParkedTransaction

ENVIRONMENT: Final = "WALTZ_DATABASE"


@dataclass(frozen=True, slots=True)
class MarksPlace:
    """An application's database, and the name of its table of marks."""

    url: str
    marks_name: str

    @contextmanager
    def engine(self) -> Iterator[sqlalchemy.Engine]:
        """Yield an engine. Raises ConfigurationError: no such database, or no driver;
        UnavailableError."""
        try:
            import sqlalchemy
            from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
        except ImportError:
            raise ConfigurationError(
                "SQLAlchemy is not installed; the extra sql brings it, or postgresql, or mysql"
            ) from None
        try:
            engine = sqlalchemy.create_engine(self.url, poolclass=sqlalchemy.NullPool)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(
                f"not a database URL: {error}; expected an SQLAlchemy URL, as"
                " postgresql+psycopg://user@host/name or sqlite:////path/app.db"
            ) from None
        try:
            self._expect_marks(engine)
            yield engine
        except DBAPIError as error:
            raise UnavailableError(f"the database failed: {error.orig}") from error
        finally:
            engine.dispose()

    @property
    def parked(self) -> ParkedTable:
        from waltz.client.databases.sql_tables import ParkedTable

        return ParkedTable(parked_table_name(self.marks_name))

    def rows(self, engine: sqlalchemy.Engine) -> list[ParkedTransaction]:
        if not self.parked.exists(engine):
            return []
        with engine.connect() as connection:
            return self.parked.rows(connection, with_data=False)

    def _expect_marks(self, engine: sqlalchemy.Engine) -> None:
        import sqlalchemy

        # SQLite makes a file of each name that it is asked about.
        has_file = _sqlite_file_is_there(engine.url)
        if not has_file or not sqlalchemy.inspect(engine).has_table(self.marks_name):
            raise ConfigurationError(
                f"there is no table {self.marks_name} in"
                f" {engine.url.render_as_string(hide_password=True)}: no application has applied a"
                " log to that database, or it has given its table another name (--table)"
            )


def _sqlite_file_is_there(url: sqlalchemy.URL) -> bool:
    """Return False if the database is a file of SQLite that does not exist."""
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    name = str(url.database)
    return not is_file or name.startswith("file:") or Path(name).exists()


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    @click.option(
        "--database", "url", envvar=ENVIRONMENT, required=True, show_envvar=True,
        help="SQLAlchemy URL of the application's database.",
    )  # fmt: skip
    @click.option(
        "--table", "marks_name", default=MARKS_TABLE, show_default=True,
        help="The application's table of high-water marks.",
    )  # fmt: skip
    @wraps(command)
    def with_place(*, url: str, marks_name: str, **others: Any) -> None:
        command(place=MarksPlace(url, marks_name), **others)

    return with_place


def transaction_options(command: Callable[..., None]) -> Callable[..., None]:
    partition = click.option("-p", "--partition", type=click.IntRange(min=0), required=True)
    transaction = click.option("-t", "--transaction", type=click.IntRange(min=0), required=True)
    return partition(transaction(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def parked() -> None:
    """Show, skip and retry transactions that an application could not apply."""


@parked.command("list")
@place_options
@json_option
def list_parked(place: MarksPlace, as_json: bool) -> None:
    """List the transactions that the application has passed over."""
    with place.engine() as engine:
        found = place.rows(engine)
    if as_json:
        click.echo(json.dumps([_to_json(each) for each in found], indent=2))
        return
    if not found:
        click.echo("none")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("partition", "transaction", "header", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("state", "parked at", "error"):
        table.add_column(heading)
    for each in found:
        size = "unknown" if each.data_bytes is None else str(each.data_bytes)
        header = "unknown" if each.header is None else str(each.header)
        table.add_row(
            str(each.partition_id), str(each.transaction_id), header, size, each.state,
            each.parked_at, escape(each.error),
        )  # fmt: skip
    output_console(soft_wrap=True).print(table)


@parked.command()
@place_options
@transaction_options
@json_option
def show(place: MarksPlace, partition: int, transaction: int, as_json: bool) -> None:
    """Show one parked transaction, with its data."""
    with place.engine() as engine:
        found = _one(place, engine, partition, transaction)
    if as_json:
        data = None if found.data is None else found.data.hex()
        click.echo(json.dumps({**_to_json(found), "data_hex": data}, indent=2))
        return
    data = "in the log only" if found.data is None else ascii(found.data.decode("latin-1"))
    for name, value in (*_to_json(found).items(), ("data", data)):
        click.echo(f"{name}: {'unknown' if value is None else value}")


@parked.command()
@place_options
@transaction_options
@click.option("--reason", default="skipped by an operator", show_default=True)
def skip(place: MarksPlace, partition: int, transaction: int, reason: str) -> None:
    """Skip the transaction that the application cannot apply at the moment.

    It must be the next one. The application notices at its next attempt.
    """
    from waltz.client.databases.sql_tables import marks_table
    from waltz.client.databases.sql_tables import skip as skip_in

    with place.engine() as engine:
        marks = marks_table(place.marks_name)
        skip_in(engine, marks, place.parked, partition, transaction, reason)
    click.echo(f"partition {partition} continues after transaction {transaction}")


@parked.command()
@place_options
@transaction_options
def retry(place: MarksPlace, partition: int, transaction: int) -> None:
    """Let the application apply a parked transaction when it starts next.

    The transactions after it are applied already: you must know that this does no harm.
    """
    from waltz.client.databases.sql_tables import RETRY

    with place.engine() as engine:
        found = _one(place, engine, partition, transaction)
        found.transaction()  # raises if the data is not there
        with engine.begin() as connection:
            place.parked.change(connection, partition, transaction, RETRY)
    click.echo(f"transaction {transaction} will be tried when the application starts next")


@parked.command()
@place_options
@transaction_options
@click.option("--yes", is_flag=True, help="Ask no question.")
def drop(place: MarksPlace, partition: int, transaction: int, yes: bool) -> None:
    """Forget a parked transaction. It stays in the log, and is never applied here."""
    with place.engine() as engine:
        _one(place, engine, partition, transaction)
        if not yes:
            click.confirm(f"forget transaction {transaction} of partition {partition}?", abort=True)
        with engine.begin() as connection:
            place.parked.remove(connection, partition, transaction)
    click.echo(f"transaction {transaction} of partition {partition} is not parked any more")


def _one(
    place: MarksPlace, engine: sqlalchemy.Engine, partition: int, transaction: int
) -> ParkedTransaction:
    """Return the parked transaction. Raises NotFoundError."""
    if not place.parked.exists(engine):
        raise NotFoundError("no transaction is parked in that database")
    with engine.connect() as connection:
        return place.parked.one(connection, partition, transaction)


def _to_json(each: ParkedTransaction) -> dict[str, object]:
    return {
        "partition": each.partition_id,
        "transaction": each.transaction_id,
        "request_id": None if each.request_id is None else str(each.request_id),
        "header": each.header,
        "bytes": each.data_bytes,
        "state": each.state,
        "parked_at": each.parked_at,
        "error": each.error,
    }
