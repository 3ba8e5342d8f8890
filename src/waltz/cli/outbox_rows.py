"""`waltz outbox ddl`, `status`, `parked`, `retry`, `drop`: the tables of an outbox.

Owns what is shown and asked. Talks to the application's database only, to no cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from waltz.cli.command_settings import read_settings
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.parked import ENVIRONMENT
from waltz.configuration.outbox_settings import (
    DATABASE,
    DIALECTS,
    OUTBOX_KEYS,
    TABLE,
    outbox_settings,
)
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from waltz.outbox.outbox_tables import OutboxStore

OUTBOX_FILE = click.argument("file", type=click.Path(dir_okay=False))
ROW_ID = click.argument("row_id", type=click.IntRange(-(2**63), 2**63 - 1))


def read_outbox(path: str) -> Settings:
    """Return the settings of a relay; warnings go to standard error. Raises ConfigurationError."""
    settings = read_settings(path, {}, OUTBOX_KEYS, outbox_settings)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    return settings


def store_of(settings: Settings) -> OutboxStore:
    """Return the outbox in the database. Raises ConfigurationError: none is named, or there is no
    driver for it."""
    url = settings.get(DATABASE) or os.environ.get(ENVIRONMENT)
    if not url:
        raise ConfigurationError(
            f"no database: set {DATABASE.name} in the file, or the environment variable"
            f" {ENVIRONMENT}"
        )
    try:
        from waltz.outbox.outbox_tables import OutboxStore, relay_engine
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed; the extra sql brings it, or postgresql, or mysql"
        ) from None
    return OutboxStore(relay_engine(url), settings[TABLE])


@contextmanager
def opened_outbox(settings: Settings) -> Iterator[OutboxStore]:
    """Yield the outbox in the database. Raises ConfigurationError: the database has none;
    UnavailableError: the database does not answer."""
    store = store_of(settings)
    from sqlalchemy.exc import DBAPIError

    try:
        store.expect()
        yield store
    except DBAPIError as error:
        raise UnavailableError(f"the database failed: {error.orig}") from error
    finally:
        store.engine.dispose()


@click.command("ddl")
@click.argument("dialect", type=click.Choice(DIALECTS))
@click.option("--table", default=TABLE.default, show_default=True, help="Name of the outbox.")
def print_ddl(dialect: str, table: str) -> None:
    """Print the statements that create an outbox.

    They are for a database of this DIALECT.

    A relay creates the tables that are missing; with these statements a migration can do it, and
    the relay needs no such permission.
    """
    from waltz.outbox.outbox_tables import OutboxTables

    for statement in OutboxTables(table).ddl(dialect):
        click.echo(f"{statement};\n")


@click.command("status")
@OUTBOX_FILE
@json_option
def outbox_status(file: str, as_json: bool) -> None:
    """Show who holds the outbox, what is claimed and what waits.

    Rows are counted up to 10,000. The holder may be dead: its own /health tells.
    """
    with opened_outbox(read_outbox(file)) as store:
        found, counts = store.standing(), store.counted()
    claimed = 0 if found.state is None else len(found.state.claim)
    facts = {
        "outbox": store.tables.rows.name,
        "holder": found.holder,
        "cluster_key": None if found.state is None else str(found.state.cluster_key),
        "partition_count": None if found.state is None else found.state.partition_count,
        "claimed": claimed,
        **counts,
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' ')}: {'none' if value is None else value}")


@click.command("parked")
@OUTBOX_FILE
@json_option
def list_parked_rows(file: str, as_json: bool) -> None:
    """List the rows that were parked, with the reasons; later rows of their keys wait."""
    with opened_outbox(read_outbox(file)) as store:
        found = store.parked()
    if as_json:
        print_json(
            [
                {
                    "id": each.row_id,
                    "key": each.key,
                    "header": each.header,
                    "bytes": each.data_bytes,
                    "locks": each.locks,
                    "parked_at": each.parked_at,
                    "reason": each.reason,
                }
                for each in found
            ]
        )
        return
    if not found:
        click.echo("none")
        return
    table = new_table("id", "key", "bytes", "parked at", "reason", left=("key", "reason"))
    for each in found:
        table.add_row(
            str(each.row_id), each.key, str(each.data_bytes), each.parked_at, each.reason,
        )  # fmt: skip
    print_table(table)


@click.command("retry")
@OUTBOX_FILE
@ROW_ID
@click.option("--locks", help="Replace the row's locks by this JSON object.")
@click.option("--without-locks", is_flag=True, help="Take the row's locks away.")
def retry_row(file: str, row_id: int, locks: str | None, without_locks: bool) -> None:
    """Put a parked row back into the outbox.

    It comes before the later rows of its key.

    With the same locks and mark a row that was refused is refused again: give it locks with a newer
    mark, once it is clear that the row still fits.
    """
    if locks is not None and without_locks:
        raise click.UsageError("--locks and --without-locks exclude each other")
    from waltz.outbox.outbox_row import parsed_locks

    try:
        parsed_locks(locks)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--locks") from None
    with opened_outbox(read_outbox(file)) as store:
        store.retry(row_id, locks=locks, keeps_locks=locks is None and not without_locks)
    click.echo(f"row {row_id} is in the outbox again")


@click.command("drop")
@OUTBOX_FILE
@ROW_ID
@click.option("--yes", is_flag=True, help="Ask no question.")
def drop_row(file: str, row_id: int, yes: bool) -> None:
    """Delete a parked row for good.

    It never gets into the log, and its key continues.
    """
    with opened_outbox(read_outbox(file)) as store:
        if not yes:
            click.confirm(f"delete row {row_id} for good?", abort=True)
        store.drop(row_id)
    click.echo(f"row {row_id} is deleted")
