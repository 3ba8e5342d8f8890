"""Two definitions of tables are told apart table by table, and what nobody may guess is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.definition_change import (
    DefinitionChange,
    change_between,
    expect_dropped,
    expect_same,
    former_definition,
    part_of,
)
from waltz.spark.pipelines.tables import TablesDefinition, parse_tables

TABLES: dict[str, Any] = {
    "one": {"keys": ["a"], "measures": {"n": "count(*)"}},
    "two": {"keys": ["a"], "measures": {"n": "count(*)"}, "where": "header = 1"},
}
DECODE: dict[str, Any] = {"fields": {"a": "int", "b": "string"}, "undecodable": "quarantine"}

AS_EARLIER_RELEASES_WROTE_IT = (
    '{"decoding": {"fields": [["a", "int"]], "quarantine": false}, "tables": [{"each": null,'
    ' "keys": [["a", "a"]], "measures": [{"expression": "*", "function": "count", "name": "n"}],'
    ' "name": "one", "where": null}]}'
)


def parsed(tables: Any = TABLES, decode: Any = DECODE) -> TablesDefinition:
    copied = yaml.safe_load(yaml.safe_dump([tables, decode], sort_keys=False))
    return parse_tables(*copied)


def change(tables: Any = TABLES, decode: Any = DECODE, before: Any = DECODE) -> DefinitionChange:
    old, new = parsed(decode=before), parsed(tables, decode)
    return change_between(old.fingerprint(), new.fingerprint(), "t.db")


def test_tables_that_come_change_and_go_are_named_and_the_others_stay() -> None:
    other = {"keys": ["b"], "measures": {"n": "count(*)"}}
    assert change() == DefinitionChange()
    assert change({**TABLES, "three": other}) == DefinitionChange(
        added=("three",), is_rewritten=True
    )
    assert change({**TABLES, "one": other}) == DefinitionChange(changed=("one",), is_rewritten=True)
    assert change({"two": TABLES["two"]}) == DefinitionChange(removed=("one",), is_rewritten=True)
    gained = {**TABLES["one"], "measures": {"n": "count(*)", "m": "max(b)"}}
    assert change({**TABLES, "one": gained}).changed == ("one",)


def test_the_order_of_tables_and_fields_is_no_change() -> None:
    turned = dict(reversed(TABLES.items()))
    fields = {**DECODE, "fields": dict(reversed(DECODE["fields"].items()))}
    found = change(turned, fields)
    assert (found.derived, found.removed, found.reads_the_past, str(found)) == ((), (), False, "")
    assert found.is_rewritten


def test_a_field_that_comes_or_goes_leaves_tables_alone_but_the_past_is_looked_at() -> None:
    for fields in ({**DECODE["fields"], "c": "int"}, {"a": "int"}):
        found = change(decode={**DECODE, "fields": fields})
        assert (found.derived, found.is_judged, found.reads_the_past) == ((), True, True)


def test_another_type_or_schema_changes_every_table() -> None:
    fields = {**DECODE["fields"], "b": "int"}
    assert change(decode={**DECODE, "fields": fields}).changed == ("one", "two")
    schemas = {"schemas": {1: "json", "others": "json"}}
    assert change(decode=DECODE | schemas).changed == (), "it says the same"
    other = {"schemas": {1: "msgpack", "others": "json"}}
    assert change(decode=DECODE | other).changed == ("one", "two")


def test_a_header_that_had_no_schema_leaves_tables_alone() -> None:
    one, both = ({"schemas": dict.fromkeys(each, "json")} for each in ([1], [1, 2]))
    found = change(before=DECODE | one, decode=DECODE | both)
    assert (found.changed, found.is_judged) == ((), True)


def test_what_was_put_aside_may_end_a_run_now() -> None:
    assert change(decode={**DECODE, "undecodable": "fail"}).is_strict
    found = change(before={**DECODE, "undecodable": "fail"})
    assert (found.is_strict, found.reads_the_past) == (False, False)


def test_definitions_of_earlier_releases_are_read() -> None:
    tables = {"one": {"keys": ["a"], "measures": {"n": "count(*)"}}}
    now = parsed(tables, {"fields": {"a": "int"}})
    assert now.fingerprint() == AS_EARLIER_RELEASES_WROTE_IT
    more = parsed({**tables, "two": tables["one"]}, {"fields": {"a": "int"}})
    found = change_between(AS_EARLIER_RELEASES_WROTE_IT, more.fingerprint(), "t.db")
    assert found == DefinitionChange(added=("two",), is_rewritten=True)
    assert former_definition(AS_EARLIER_RELEASES_WROTE_IT, more, "t.db") == now


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"tables": [7], "decoding": {}}'])
def test_a_text_that_is_no_definition_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 t\.db has a definition that cannot"):
        change_between(text, parsed().fingerprint(), "t.db")


def test_the_former_definition_needs_the_schemas_it_decoded_by() -> None:
    schemas = DECODE | {"schemas": {1: "json", 2: "msgpack"}}
    stored = parsed(decode=schemas).fingerprint()
    assert former_definition(stored, parsed(decode=schemas), "t.db").fingerprint() == stored
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*as they were, then with these"):
        former_definition(stored, parsed(decode=DECODE | {"schemas": {1: "json"}}), "t.db")


def test_a_table_goes_only_if_it_is_named_and_no_other_does() -> None:
    gone = DefinitionChange(removed=("one", "two"))
    expect_dropped(gone, ("two", "one"), "t.db")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 .*: two\. .*run --drop two"):
        expect_dropped(gone, ("one",), "t.db")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1009 t\.db: three cannot be dropped"):
        expect_dropped(gone, ("one", "two", "three"), "t.db")


def test_a_proof_wants_all_tables_to_be_there() -> None:
    old = parsed().fingerprint()
    expect_same(old, parsed(dict(reversed(TABLES.items()))).fingerprint(), "t.db")
    more = parsed({**TABLES, "three": TABLES["one"]}).fingerprint()
    with pytest.raises(
        ConfigurationError, match=r"^WALTZ-1009 .*table three is not there yet; run"
    ):
        expect_same(old, more, "t.db")


def test_a_part_of_a_definition_decodes_as_the_whole() -> None:
    part = part_of(parsed(), ("two",))
    assert ([each.name for each in part.tables], part.decoding) == (["two"], parsed().decoding)
