"""What docs/pipelines.md shows works as it stands there, and it leaves nothing out."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import waltz
from tests.clusters import ROOT
from tests.spark.test_pipelines_schemas import AVRO, descriptors
from tests.storage.inspected import our_files, write_files
from waltz.spark import codes
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.pipelines.definition import KINDS, LineageJob, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.lineage_shell import lineage_client
from waltz.spark.schema import COLUMNS
from waltz.spark.sink_rows import SINK_COLUMNS
from waltz.spark.spark_options import OPTIONS, SINK_OPTIONS
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "pipelines.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_every_option_column_and_code() -> None:
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert set(OPTIONS) | set(SINK_OPTIONS) | set(COLUMNS) | set(SINK_COLUMNS) <= named
    given = {value for name, value in vars(codes).items() if name.isupper()}
    table = PAGE[PAGE.index("| Text begins with") :]
    told = set(re.findall(r"WALTZ-\d{4}", table)) | {f"WALTZ-100{n}" for n in range(1, 6)}
    told |= {f"WALTZ-{n}" for n in re.findall(r"`(\d{4})`", table)}
    assert given == told


def test_the_files_of_pipelines_are_such_and_show_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, tables, schemas, delta, lineage, transport, audit = blocks("yaml")
    definition = parse_definition(archive, directory=Path("/etc"))
    assert (definition.kind, definition.partitions) == ("archive", (0, 1, 2, 3))
    definition = parse_definition(tables, directory=Path("/etc"))
    assert (definition.kind, definition.archive) == ("tables", Path("/etc/archive"))
    definition = parse_definition(audit, directory=Path("/etc"))
    assert (definition.kind, definition.archive) == ("audit", Path("/etc/archive"))
    shown = set(re.findall(r"^(\w+):", archive + tables + delta, re.MULTILINE))
    assert shown == {key for keys in KINDS.values() for key in keys}

    parts = {key: yaml.safe_load(tables)[key] for key in ("pipeline", "cluster")}
    for part in (schemas, delta, lineage):
        parts |= yaml.safe_load(part)
    parts["tables"] = {"sums": {"keys": {"account": "account"}, "measures": {"n": "count(*)"}}}
    (tmp_path / "order.avsc").write_bytes(AVRO.content)
    (tmp_path / "order.desc").write_bytes(descriptors())
    definition = parse_definition(yaml.safe_dump(parts), directory=tmp_path)
    assert (definition.target_kind, definition.buckets) == ("delta", 256)
    assert definition.lineage == LineageJob("shop", "accounts")
    (tmp_path / "openlineage.yml").write_text(transport.replace("/var/log/waltz", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    assert lineage_client().transport.kind == "file"
    assert definition.tables is not None
    assert [header for header, _ in definition.tables.decoding.schemas] == [0, 6, 7, 8, None]


BALANCES = """\
pipeline: tables
cluster: {cluster}
target: sqlite:accounts.db
changes: 100
tables: {{balances: {{keys: {{header: header}}, measures: {{n: count(*)}}}}}}
"""


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
def test_the_programs_run(spark: SparkSession, cluster: str, tmp_path: Path) -> None:
    """PS-01, PS-02, PS-07."""
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(10):
            client.append(number % 2, b"x")
    copy = write_files(tmp_path / "copy", our_files((5, 7, 4), (3,)))
    add_to_archive(spark, LogAccess(cluster), tmp_path / "archive")
    accounts = tmp_path / "accounts.yaml"
    accounts.write_text(BALANCES.format(cluster=cluster))
    take_in(spark, LogAccess(cluster), parse_definition(accounts.read_text(), directory=tmp_path))
    applied: list[Any] = []
    names: dict[str, Any] = {
        "position": None,
        "database": SimpleNamespace(transaction=nullcontext),
        "apply": lambda _, keys, change: applied.append((keys, change.kind, change.after)),
        "save": lambda _, position: applied.append(position),
    }
    for block in blocks("python"):
        block = block.replace("127.0.0.1:7100", cluster)
        block = block.replace("/var/lib/accounts", str(tmp_path))
        block = block.replace("accounts.yaml", str(accounts))
        block = block.replace("/var/lib/amounts", str(tmp_path / "good"))
        block = block.replace("/var/lib/undecodable", str(tmp_path / "bad"))
        block = block.replace("/var/lib/waltz/archive", str(tmp_path / "archive"))
        block = block.replace("/var/lib/waltz/copy", str(copy))
        exec(block, names)
        for name in ("query", "until_now", "copies"):
            if name in names:
                names.pop(name).awaitTermination()
    *inserted, position = applied  # a row per header: other tests append to the cluster, too
    assert {each[:2] for each in inserted} == {(("header",), "insert")}
    assert sum(row[1] for _, _, row in inserted) == sum(position.marks.values())
    headers = names["log"].select("header").distinct().collect()
    assert sorted(row[0] for _, _, row in inserted) == sorted(each.header for each in headers)
    counts = [
        frame.count()
        for frame in (
            names["log"],
            spark.read.parquet(str(tmp_path / "log")),
            names["archived"],
        )
    ]
    assert counts[0] >= 10
    assert len(set(counts)) == 1
    assert names["files"].count() == 12
    apart = [row for row in names["amounts"].collect() if row.undecodable is not None]
    assert len(apart) >= 10
    assert all(row.data is None for row in apart)
    assert {b"x"} <= {bytes(row.undecodable) for row in apart}
    names["split"](names["amounts"], 3)
    assert spark.read.parquet(str(tmp_path / "bad" / "3")).count() == len(apart)
    good = spark.read.parquet(str(tmp_path / "good" / "3"))
    assert good.columns == ["transaction_id", "data"]
    assert names["history"].count() >= counts[0] + 100 + (counts[0] + 100) // 2
