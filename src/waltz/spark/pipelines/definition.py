"""The definition of a pipeline, from its file: the file's text in, a value out. Nothing is read but
the files of schemas that the text names.

pipeline: archive
cluster: 127.0.0.1:7100
target: /var/lib/waltz/archive
partitions: 0-3
spark:
  spark.master: local[2]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

import yaml

from waltz.errors import ConfigurationError
from waltz.plain_yaml import PlainLoader
from waltz.spark.archive_location import (
    DELTA,
    OBJECT_STORE_URL,
    ArchiveLocation,
    DeltaLocation,
    parse_location,
)
from waltz.spark.codes import INVALID_DEFINITION
from waltz.spark.offsets import parse_partitions
from waltz.spark.pipelines.report_definition import ReportDefinition, parse_report
from waltz.spark.pipelines.tables import TablesDefinition, expect_mapping, parse_tables
from waltz.types import PartitionId, TlsSettings, parse_cluster

KEYS: Final = ("pipeline", "cluster", "target", "partitions", "tls", "spark")
KEYS_OF_DERIVED: Final = ("lineage",)
KEYS_OF_TABLES: Final = (
    *("tables", "decode", "archive", "transactionsPerBatch", "report", "buckets", "changes"),
)
KINDS: Final = {
    "archive": KEYS + KEYS_OF_DERIVED,
    "tables": KEYS + KEYS_OF_DERIVED + KEYS_OF_TABLES,
    "audit": (*KEYS, "archive"),
}
"""The keys that a file may have, by its kind of pipeline."""

BATCH_TRANSACTIONS: Final = 250_000
BATCH_TRANSACTIONS_MAX: Final = 100_000_000
BUCKETS_MAX: Final = 4096
"""Buckets of a Delta or Iceberg table, each of which is a file that a batch may rewrite."""

CHANGES_MAX: Final = 1_000_000_000
"""Changes of rows that may be kept of each table in SQLite."""

TargetKind = Literal["sqlite", "delta", "iceberg"]
SCHEME: Final = re.compile(r"([a-z][a-z0-9]+):(.*)")
"""A target with what keeps the tables."""

LINEAGE_KEYS: Final = ("namespace", "job")
LINEAGE_NAME_CHARACTERS_MAX: Final = 255
"""Characters of a name of a job, and of its namespace: backends of lineage take as many."""

TLS_KEYS: Final = ("ca", "cert", "key", "token")


@dataclass(frozen=True, slots=True)
class LineageJob:
    """The name by which a backend of lineage knows a pipeline."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """The content of a definition file.

    target              the archive's directory, the database or directory of the tables, or the
                        file for the result of an audit. For tables in an object store a path on
                        this machine, next to which a run keeps what is its own.
    target_kind         what keeps the tables.
    partitions          None for all of them.
    spark               Spark's settings.
    tables              None for an archive.
    archive             the archive to read old transactions from, or to audit; None for none.
    batch_transactions  transactions that become part of the tables at once.
    report              the report on the tables; None for none.
    buckets             buckets of each Delta or Iceberg table; None for what the tables have.
    changes             changes of rows that are kept of each table in SQLite; None: none.
    url                 the URL of tables in an object store; None for a target on a disk.
    lineage             the job that a backend of lineage is told of; None: no backend is told.
    """

    kind: str
    cluster: str
    target: Path
    partitions: tuple[PartitionId, ...] | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)
    spark: Mapping[str, str] = field(default_factory=dict)
    tables: TablesDefinition | None = None
    archive: ArchiveLocation | None = None
    batch_transactions: int = BATCH_TRANSACTIONS
    report: ReportDefinition | None = None
    target_kind: TargetKind = "sqlite"
    buckets: int | None = None
    changes: int | None = None
    url: str | None = None
    lineage: LineageJob | None = None

    @property
    def place(self) -> str:
        """The target, as a message names it."""
        return str(self.target) if self.url is None else self.url

    @property
    def archive_location(self) -> ArchiveLocation:
        """The place of the archive that this definition is of."""
        if self.target_kind != "delta":
            return self.target
        return DeltaLocation(self.url or str(self.target))


def parse_definition(text: str, *, directory: Path) -> PipelineDefinition:
    """Return the definition in the file's `text`; paths in it are relative to `directory`.

    Raises ConfigurationError, naming the key.
    """
    try:
        # A subclass of the safe loader: it returns plain values only.
        found = yaml.load(text, Loader=PlainLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{INVALID_DEFINITION} not YAML: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{INVALID_DEFINITION} nested too deeply") from None
    given = expect_mapping("the file", found)
    kind = given.get("pipeline")
    if kind not in tuple(KINDS):
        fault = f"is {kind!r}" if "pipeline" in given else "is missing"
        raise ConfigurationError(
            f"{INVALID_DEFINITION} pipeline {fault}; expected one of {', '.join(KINDS)}"
        )
    expect_mapping("the file", given, KINDS[kind])
    for key in ("cluster", "target", *(("tables",) if kind == "tables" else ())):
        if key not in given:
            raise ConfigurationError(f"{INVALID_DEFINITION} {key} is missing")
    cluster = str(given["cluster"])
    try:
        parse_cluster(cluster)
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_DEFINITION} cluster: {error}") from error
    tls = expect_mapping("tls", given.get("tls", {}), TLS_KEYS)
    files = {key: str(directory / str(tls[key])) for key in TLS_KEYS if key in tls}
    spark = expect_mapping("spark", given.get("spark", {}))
    target_kind, target, url = _target(kind, str(given["target"]))
    _expect_fitting(target_kind, given)
    return PipelineDefinition(
        kind=kind,
        cluster=cluster,
        target=directory / target,
        target_kind=target_kind,
        url=url,
        partitions=parse_partitions(str(given["partitions"])) if "partitions" in given else None,
        tls=TlsSettings(
            files.get("cert"),
            files.get("key"),
            authorities=files.get("ca"),
            token_file=files.get("token"),
        ),
        spark={key: _spark_text(value) for key, value in spark.items()},
        tables=parse_tables(given["tables"], given.get("decode"), directory)
        if kind == "tables"
        else None,
        archive=_archive(str(given["archive"]), directory) if "archive" in given else None,
        report=parse_report(given["report"], directory) if "report" in given else None,
        batch_transactions=_number("transactionsPerBatch", given, BATCH_TRANSACTIONS_MAX)
        or BATCH_TRANSACTIONS,
        buckets=_number("buckets", given, BUCKETS_MAX),
        changes=_number("changes", given, CHANGES_MAX),
        lineage=_lineage(given["lineage"]) if "lineage" in given else None,
    )


def _lineage(found: object) -> LineageJob:
    """Return the job under `lineage`. Raises ConfigurationError: it has not the two names."""
    given = expect_mapping("lineage", found, LINEAGE_KEYS)
    for key in LINEAGE_KEYS:
        text = given.get(key)
        is_name = isinstance(text, str) and text.strip() == text and text.isprintable()
        if not is_name or not 1 <= len(str(text)) <= LINEAGE_NAME_CHARACTERS_MAX:
            raise ConfigurationError(
                f"{INVALID_DEFINITION} lineage: {key} is {text!r:.80}; expected a text of 1 to"
                f" {LINEAGE_NAME_CHARACTERS_MAX} characters, as in"
                " `lineage: {namespace: shop, job: accounts}`"
            )
    return LineageJob(str(given["namespace"]), str(given["job"]))


def _expect_fitting(target_kind: TargetKind, given: Mapping[str, object]) -> None:
    """Raise ConfigurationError: a key of the file is for other targets than this one."""
    if target_kind == "sqlite":
        wrong = {"buckets": "only Delta and Iceberg tables have buckets"}
    else:
        wrong = {
            "report": "a report needs tables in SQLite",
            "changes": "Delta and Iceberg tables have their changes in their versions, which"
            " `waltz pipeline tidy` keeps; leave it out",
        }
    for key, fault in wrong.items():
        if key in given:
            raise ConfigurationError(
                f"{INVALID_DEFINITION} {key}: {fault}; the target is {given['target']!r}"
            )


def _target(kind: str, text: str) -> tuple[TargetKind, str, str | None]:
    """Return what keeps the tables, their path, and their URL if they are in an object store."""
    found = SCHEME.fullmatch(text)
    if found is None or kind == "audit" or (kind == "archive" and not text.startswith(DELTA)):
        return "sqlite", text, None
    scheme, place = found.groups()
    if scheme == "delta" and (url := OBJECT_STORE_URL.fullmatch(place)):
        return "delta", url[2], place.rstrip("/")
    for target_kind in get_args(TargetKind):
        if scheme == target_kind and place and not place.startswith("//") and "://" not in place:
            return target_kind, place, None
    is_hadoop = scheme == "delta" and place.startswith(("s3a:", "s3n:"))
    s3 = "; Waltz reads and writes the bucket itself, not Hadoop: write s3://" if is_hadoop else ""
    others = "delta:PATH" if kind == "archive" else "sqlite:PATH, delta:PATH or iceberg:PATH"
    raise ConfigurationError(
        f"{INVALID_DEFINITION} target is {text!r}; expected a path, {others}, on"
        " a disk of the machine that runs the pipeline, or"
        f" delta:s3://BUCKET/PREFIX{s3}"
    )


def _archive(text: str, directory: Path) -> ArchiveLocation:
    try:
        return parse_location(text, directory)
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_DEFINITION} archive: {error}") from error


def _number(key: str, given: Mapping[str, object], most: int) -> int | None:
    """Return the number under a key, None if the file does not have it. Raises ConfigurationError:
    it is none from 1 to `most`."""
    found = given.get(key)
    if found is None:
        return None
    if type(found) is not int or not 1 <= found <= most:
        raise ConfigurationError(
            f"{INVALID_DEFINITION} {key} is {found!r}; expected a number from 1 to {most}"
        )
    return found


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
