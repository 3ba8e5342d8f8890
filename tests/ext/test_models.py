"""The models are the tables of SqlCallbacks, and the migration is that of the models."""

from __future__ import annotations

import sqlalchemy as sql
from django.core.management import call_command

from tests.ext.django_project import alias_of
from waltz.client.databases.sql_tables import ParkedTable, make_marks_ready, marks_table
from waltz.ext.django.models import PARKED_TABLE, HighWaterMark, ParkedTransaction


def columns_of(engine: sql.Engine, table: str) -> dict[str, tuple[type, bool]]:
    """Return the kind of each column, as Python's type, and whether it may be NULL."""
    return {
        each["name"]: (each["type"].python_type, bool(each["nullable"]))
        for each in sql.inspect(engine).get_columns(table)
    }


def keys_of(engine: sql.Engine, table: str) -> list[str]:
    return sql.inspect(engine).get_pk_constraint(table)["constrained_columns"]


def test_the_migration_makes_the_tables_of_sql_callbacks(engine: sql.Engine) -> None:
    call_command("migrate", "waltz", database=alias_of(engine.url), verbosity=0)
    tables = (marks_table("waltz_high_water_marks"), ParkedTable(PARKED_TABLE).table)
    made = {
        each.name: (columns_of(engine, each.name), keys_of(engine, each.name)) for each in tables
    }
    with engine.begin() as connection:
        for each in tables:
            each.drop(connection)
    for each in tables:
        each.create(engine)
        assert made[each.name] == (columns_of(engine, each.name), keys_of(engine, each.name))


def test_tables_that_sql_callbacks_have_made_are_taken_over(engine: sql.Engine) -> None:
    make_marks_ready(marks_table("waltz_high_water_marks"), engine)
    ParkedTable(PARKED_TABLE).create(engine)
    alias = alias_of(engine.url)
    call_command("migrate", "waltz", database=alias, fake_initial=True, verbosity=0)
    HighWaterMark.objects.using(alias).create(partition_id=3, high_water_mark=5)
    assert str(HighWaterMark.objects.using(alias).get()) == "partition 3: 5"
    row = ParkedTransaction(partition_id=3, transaction_id=6, error="no", state="parked")
    row.save(using=alias, force_insert=True)
    assert str(row) == "transaction 6 of partition 3"


def test_the_models_have_no_change_without_a_migration() -> None:
    call_command("makemigrations", "waltz", check_changes=True, dry_run=True, verbosity=0)
