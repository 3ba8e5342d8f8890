"""The file of a pipeline: read whole, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.tables import parse_tables
from waltz.types import TlsSettings

HOME = Path("/etc/waltz")
MEASURES = {"transactions": "count(*)"}
LEAST = "pipeline: archive\ncluster: 127.0.0.1:7100\ntarget: archive\n"
TABLES = """\
pipeline: tables
cluster: waltz://a:1,b:2
target: tables.db
tables: {t: {keys: [header], measures: {transactions: count(*)}}}
"""


def test_three_keys_are_enough() -> None:
    assert parse_definition(LEAST, directory=HOME) == PipelineDefinition(
        "archive", "127.0.0.1:7100", HOME / "archive"
    )


def test_everything_else_may_be_said() -> None:
    more = (
        "partitions: 0-1,7\ntls: {ca: ca.pem, cert: /a.pem, key: /b.pem}\n"
        "spark: {spark.master: 'local[2]', spark.ui.enabled: false}\n"
    )
    found = parse_definition(LEAST + more, directory=HOME)
    assert found.partitions == (0, 1, 7)
    assert found.tls == TlsSettings("/a.pem", "/b.pem", authorities="/etc/waltz/ca.pem")
    assert found.spark == {"spark.master": "local[2]", "spark.ui.enabled": "false"}


def test_tables_are_defined_beside_what_every_pipeline_says() -> None:
    found = parse_definition(TABLES, directory=HOME)
    assert (found.kind, found.target, found.archive) == ("tables", HOME / "tables.db", None)
    assert found.batch_transactions == 250_000
    assert found.tables == parse_tables({"t": {"keys": ["header"], "measures": MEASURES}}, None)
    more = parse_definition(
        TABLES + "archive: old\ntransactionsPerBatch: 7\ndecode: {fields: {a: int}}",
        directory=HOME,
    )
    assert (more.archive, more.batch_transactions) == (HOME / "old", 7)
    assert more.tables is not None
    assert more.tables.decoding.fields == (("a", "int"),)


def test_a_target_of_tables_says_what_keeps_them() -> None:
    def found(target: str) -> tuple[str, Path]:
        text = TABLES.replace("target: tables.db", f"target: {target}")
        parsed = parse_definition(text, directory=HOME)
        return parsed.target_kind, parsed.target

    assert found("sqlite:tables.db") == found("tables.db") == ("sqlite", HOME / "tables.db")
    assert found("delta:tables") == ("delta", HOME / "tables")
    assert found("iceberg:tables") == ("iceberg", HOME / "tables")
    assert found("delta:/srv/tables") == ("delta", Path("/srv/tables"))
    assert found("./a:b") == ("sqlite", HOME / "a:b")
    text = TABLES.replace("target: tables.db", "target: delta:s3://bucket/some/tables/")
    bucket = parse_definition(text, directory=HOME)
    assert (bucket.target_kind, bucket.url) == ("delta", "s3://bucket/some/tables")
    assert bucket.target == HOME / "tables", "where the result of a verify is noted"
    assert bucket.place == bucket.url
    archive = parse_definition(LEAST.replace("target: ", "target: delta:"), directory=HOME)
    assert (archive.target_kind, archive.target) == ("delta", HOME / "archive")
    assert archive.archive_location == DeltaLocation(str(HOME / "archive"))
    stored = parse_definition(
        LEAST.replace("target: ", "target: delta:s3://bucket/"), directory=HOME
    )
    assert stored.archive_location == DeltaLocation("s3://bucket/archive")
    for text, fault in (("s3a://b/t", "not Hadoop"), ("//b/t", "expected a path, delta:PATH or")):
        with pytest.raises(ConfigurationError, match=fault):
            parse_definition(f"{TABLES}archive: delta:{text}\n", directory=HOME)
    given = parse_definition(f"{TABLES}archive: delta:old\n", directory=HOME)
    assert given.archive == DeltaLocation(str(HOME / "old"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pipeline: [", "not YAML"),
        ("", "the file is None; expected keys"),
        ("cluster: h:1\ntarget: t", "pipeline is missing"),
        ("pipeline: archive\ntarget: t", "cluster is missing"),
        (LEAST.replace("archive\nc", "poem\nc"), "pipeline is 'poem'; expected one of archive"),
        (LEAST + "destination: x", "the file has the unknown key 'destination'"),
        (LEAST + "tls: {pem: x}", "tls has the unknown key 'pem'"),
        (LEAST + "spark: 7", "spark is 7; expected keys"),
        (LEAST.replace("127.0.0.1:7100", "nowhere"), "cluster: "),
        (LEAST + "tables: {}", "the file has the unknown key 'tables'"),
        (TABLES.replace("tables:", "archive:"), "tables is missing"),
        (TABLES + "transactionsPerBatch: 0", "transactionsPerBatch is 0; expected a number"),
        (LEAST.replace("127.0.0.1:7100", "waltz://h"), "cluster: "),
        (
            TABLES.replace("tables.db", "hudi:t"),
            "target is 'hudi:t'; expected a path, sqlite",
        ),
        (TABLES.replace("tables.db", "'delta:'"), "target is 'delta:'; expected"),
        (TABLES.replace("tables.db", "s3://b/t"), "target is 's3://b/t'; expected"),
        (TABLES.replace("tables.db", "sqlite:s3://b/t"), "target is 'sqlite:s3://b/t'; expected"),
        (TABLES.replace("tables.db", "iceberg:s3://b/t"), "target is 'iceberg:s3://b/t'; expected"),
        (TABLES.replace("tables.db", "delta:s3://bucket"), "target is 'delta:s3://bucket'; ex"),
        (TABLES.replace("tables.db", "delta:s3://me:x@bucket/t"), "target is 'delta:s3://me"),
        (
            TABLES.replace("tables.db", "delta:s3a://bucket/t"),
            "target is 'delta:s3a://bucket/t'; .* not Hadoop: write s3://",
        ),
        (
            TABLES.replace("tables.db", "delta:t")
            + "report: {target: r.html, title: t, text: t,"
            + " sections: [{title: t, text: t, query: SELECT 1}]}",
            "report: a report needs tables in SQLite; the target is 'delta:t'",
        ),
        (TABLES + "transactionsPerBatch: true", "transactionsPerBatch is True; expected"),
        (TABLES + "buckets: 8", "buckets: only Delta and Iceberg tables have buckets; the target"),
        (
            TABLES.replace("tables.db", "delta:t") + "buckets: 4097",
            "buckets is 4097; expected a number from 1 to 4096",
        ),
        (TABLES + "changes: 0", "changes is 0; expected a number from 1 to 1000000000"),
        (
            TABLES.replace("tables.db", "iceberg:t") + "changes: 9",
            "changes: Delta and Iceberg tables have their changes in their versions",
        ),
        (LEAST + "lineage: true", "lineage is True; expected keys"),
        (LEAST + "lineage: {namespace: shop}", "lineage: job is None; expected a text of 1 to 255"),
        (LEAST + "lineage: {namespace: '', job: a}", "lineage: namespace is ''; expected a text"),
        (LEAST + f"lineage: {{namespace: s, job: {'a' * 256}}}", "lineage: job is 'aaa"),
        (LEAST + 'lineage: {namespace: s, job: "a\\n"}', "lineage: job is 'a.*n'; expected"),
        (
            LEAST.replace("archive\nc", "audit\nc") + "lineage: {namespace: s, job: a}",
            "the file has the unknown key 'lineage'",
        ),
    ],
)
def test_a_mistake_is_named(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1007 {fault}"):
        parse_definition(text, directory=HOME)
