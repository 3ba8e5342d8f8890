"""Definitions of derived tables: read whole, and a mistake in one is named."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.tables import (
    Decoding,
    Measure,
    TableDefinition,
    TablesDefinition,
    parse_tables,
)

TABLES = """\
balances:
  where: header = 1
  each: changes
  keys: {account: "element[0]", day: "date_trunc('day', at)"}
  measures: {balance: "sum(element[1])", largest: ' max ( abs(element[1]) ) ', moves: count(*)}
by_header:
  keys: [header]
  measures: {transactions: count(*)}
"""
DECODE = "fields: {changes: 'array<array<bigint>>', at: timestamp}\nundecodable: quarantine"


def parsed(tables: str, decode: str = "null") -> TablesDefinition:
    return parse_tables(yaml.safe_load(tables), yaml.safe_load(decode))


def test_tables_have_keys_measures_conditions_and_elements() -> None:
    assert parsed(TABLES, DECODE) == TablesDefinition(
        (
            TableDefinition(
                "balances",
                (("account", "element[0]"), ("day", "date_trunc('day', at)")),
                (
                    Measure("balance", "sum", "element[1]"),
                    Measure("largest", "max", "abs(element[1])"),
                    Measure("moves", "count", "*"),
                ),
                where="header = 1",
                each="changes",
            ),
            TableDefinition(
                "by_header", (("header", "header"),), (Measure("transactions", "count", "*"),)
            ),
        ),
        Decoding((("changes", "array<array<bigint>>"), ("at", "timestamp")), quarantine=True),
    )


def test_data_need_not_be_decoded_and_may_fail_a_run() -> None:
    assert parsed(TABLES).decoding == Decoding()
    assert not parsed(TABLES, "fields: {a: int}").decoding.quarantine


def test_any_change_of_a_definition_is_told_by_its_fingerprint() -> None:
    whole = parsed(TABLES, DECODE).fingerprint()
    assert whole == parsed(TABLES, DECODE).fingerprint()
    changes = (("sum", "max"), ("= 1", "= 2"), ("moves", "count_of"), ("'day'", "'hour'"))
    others = {parsed(TABLES.replace(*each), DECODE).fingerprint() for each in changes}
    others.add(parsed(TABLES, DECODE.replace("at: timestamp", "at: date")).fingerprint())
    others.add(parsed(TABLES, DECODE.replace("quarantine", "fail")).fingerprint())
    assert len(others - {whole}) == len(changes) + 2


@pytest.mark.parametrize(
    ("tables", "decode", "fault"),
    [
        ("{}", None, "tables is empty"),
        ("7", None, "tables is 7; expected keys"),
        ("t: {measures: {n: count(*)}}", None, "table t: keys is missing"),
        ("t: {keys: [a]}", None, "table t: measures is missing"),
        ("t: {keys: [], measures: {n: count(*)}}", None, "table t: keys is empty"),
        ("t: {keys: [a], measures: {n: avg(x)}}", None, "table t: measure n is 'avg.x.'; expected"),
        ("t: {keys: [a], measures: {n: 7}}", None, "table t: measure n is 7; expected count"),
        ("t: {keys: [a], measures: {A: count(*)}}", None, "table t has the name 'A', which is tak"),
        (
            "t: {keys: [last_partition], measures: {}}",
            None,
            "table t has the name 'last_partition'",
        ),
        ("waltz_t: {keys: [a], measures: {}}", None, "tables has the name 'waltz_t', which is tak"),
        ("'a b': {keys: [a], measures: {}}", None, "tables has the name 'a b'; expected letters"),
        ("t: {keys: [a], measures: {}, by: x}", None, "table t has the unknown key 'by'"),
        (TABLES, {"undecodable": "hide"}, "decode: undecodable is 'hide'; expected fail or quar"),
        (TABLES, {"fields": {"a": "int", "A": "int"}}, "decode: fields has the name 'A', which"),
        (TABLES, {"format": "xml"}, "decode has the unknown key 'format'"),
    ],
)
def test_a_mistake_is_named(tables: str, decode: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1007 {fault}"):
        parse_tables(yaml.safe_load(tables), decode)


@pytest.mark.parametrize("name", ["partition", "transaction_id", "request_id", "header", "Data"])
def test_a_field_has_no_name_of_a_column_of_the_log(name: str) -> None:
    table = {"keys": {"k": "partition"}, "measures": {"n": "count(*)"}}
    with pytest.raises(ConfigurationError, match=f"decode: fields has the name '{name}', which is"):
        parse_tables({"t": table}, {"fields": {name: "string"}})
