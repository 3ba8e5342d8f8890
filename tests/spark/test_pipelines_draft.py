"""Drafts of definitions: what is guessed from a sample, and that a draft is a definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
import yaml

from waltz.envelope import enclosed
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.draft import FIELDS_MAX, Draft, Sample, draft

CLUSTER = "127.0.0.1:7100"


def drafted(samples: list[Sample], **tls: str) -> Draft:
    found = draft(samples, CLUSTER, "tables.db", "a sample", tls)
    parse_definition(found.text, directory=Path("/srv"))
    return found


def objects(*values: Any, header: int = 0) -> list[Sample]:
    return [Sample(header, json.dumps(each).encode()) for each in values]


def test_the_draft_of_a_log_of_moves() -> None:
    samples = objects(
        *({"account": n % 3, "amount": n, "at": f"2026-11-0{1 + n}T10:00:00Z"} for n in range(6))
    )
    assert (
        drafted(samples).text
        == """\
# Drafted from a sample: 6 have data that is an object in
# JSON or a map in MessagePack. Before the first run change what you like: the fields
# that are decoded, and the tables. docs/pipelines.md has all that may stand here.
pipeline: tables
cluster: "127.0.0.1:7100"
target: "tables.db"
decode:
  fields:
    account: "bigint"
    amount: "bigint"
    at: "timestamp"
  undecodable: quarantine       # data that is otherwise is put aside, and counted
tables:
  headers:                      # one row for each header
    keys: {header: header}
    measures:
      transactions: count(*)
  by_account:
    where: account is not null
    keys:
      account: account
    measures:
      transactions: count(*)
      amount_sum: sum(amount)
      last_at: max(at)
"""
    )


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(2**63)], "bigint"),
        ([1, 2.5], "double"),
        ([True, False], "boolean"),
        (["2026-11-01T10:00:00Z", "2026-11-01 10:00:00.25+01:00"], "timestamp"),
        (["2026-11-01T10:00:00Z", "soon"], "string"),
        (["2026-13-01T10:00:00Z"], "string"),
        ([[1], [], [None]], "array<bigint>"),
        ([[[1, 2.0]], []], "array<array<double>>"),
        ([{"a": 1}, {"a": None, "b": ["x"]}], "struct<`a`: bigint, `b`: array<string>>"),
        ([{"a": 1, "b c": 2, "n": None}], "struct<`a`: bigint>"),
        ([[[[[[1]]]]]], None),
        ([1, "x"], None),
        ([2**63], None),
        ([None], None),
        ([[]], None),
        ([[1], {"a": 1}], None),
        ([True, 1], None),
    ],
)
def test_the_type_of_a_field_is_one_for_all_its_values(values: list[Any], kind: str | None) -> None:
    found = drafted(objects(*({"f": each, "n": 1} for each in values)))
    assert found.fields.get("f") == kind
    assert ("f" in found.left_out) == (kind is None)


def test_names_that_no_field_can_have_are_left_out_with_the_reason() -> None:
    row = {"header": 1, "Data": 2, "a b": 3, "waltz_x": 4, "on": 5, "x": 6, "X": 7, "n\n- y": 8}
    found = drafted(objects(row, row))
    assert found.fields == {"X": "bigint", "on": "bigint"}
    assert set(found.left_out) == {"header", "Data", "a b", "waltz_x", "x", "n\n- y"}
    many = drafted(objects({f"f{number}": 1 for number in range(FIELDS_MAX + 5)}))
    assert (len(many.fields), len(many.left_out)) == (FIELDS_MAX, 5)


def test_formats_are_those_of_headers_and_other_data_is_put_aside() -> None:
    at = "2026-11-01T10:00:00Z"
    samples = [
        *objects({"a": 1, "at": at}, {"a": 2}),
        Sample(6, msgpack.packb({"a": 3, "at": at})),
        Sample(6, b"\xc1"),
        Sample(7, b"text"),
        Sample(8, b"[1, 2]"),
        Sample(9, enclosed({"idempotency-key": "7"}, b'{"a": 4}')),
    ]
    found = drafted(samples, ca="/etc/ca.pem")
    assert (found.sampled, found.decodable) == (7, 4)
    assert found.fields == {"a": "bigint", "at": "string"}
    given = yaml.safe_load(found.text)
    assert given["decode"]["schemas"] == {0: "json", 6: "msgpack", 9: "json"}
    assert given["tls"] == {"ca": "/etc/ca.pem"}


def test_a_log_without_objects_has_a_table_of_headers() -> None:
    found = drafted([Sample(0, b"x"), Sample(1, b""), Sample(1, b"[" * 100_000)])
    assert yaml.safe_load(found.text)["tables"] == {
        "headers": {"keys": {"header": "header"}, "measures": {"transactions": "count(*)"}}
    }
    assert "decode" not in yaml.safe_load(found.text)


def test_the_key_of_a_table_is_a_field_that_repeats() -> None:
    rows = [{"id": n, "shop": n % 2, "kind": "a", "customer": f"c{n % 4}"} for n in range(20)]
    assert "by_customer" in yaml.safe_load(drafted(objects(*rows)).text)["tables"]
    unique = [{"id": n} for n in range(20)]
    assert list(yaml.safe_load(drafted(objects(*unique)).text)["tables"]) == ["headers"]
