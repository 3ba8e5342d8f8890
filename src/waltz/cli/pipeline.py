"""`waltz pipeline`: jobs that derive data from the log, run on Spark from a file each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltz.spark.pipelines.definition import PipelineDefinition

FILE = click.argument("definition", type=click.Path(dir_okay=False, path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def pipeline() -> None:
    """Derive data from the log with Spark: run, look at, prove and rebuild.

    DEFINITION is a YAML file: pipeline (archive), cluster, target, and if need be partitions,
    tls (ca, cert, key) and spark (its settings).
    """


@pipeline.command()
@FILE
@JSON
def run(definition: Path, as_json: bool) -> None:
    """Take in what the log has beyond the target, which is made if need be."""
    wanted = _read(definition)
    from waltz.spark.pipelines.archive import add_to_archive

    with _session(wanted) as spark:
        report = add_to_archive(spark, _access(wanted), wanted.target, partitions=wanted.partitions)
    _show(
        as_json,
        {
            "transactions": report.transactions,
            "files": report.files,
            "bytes": report.byte_count,
            "swept": list(report.swept),
        },
        f"archived {report.transactions:,} transactions in {report.files} files,"
        f" {report.byte_count:,} bytes",
    )


@pipeline.command()
@FILE
@JSON
def status(definition: Path, as_json: bool) -> None:
    """Show what the target has and how far it is behind the log."""
    wanted = _read(definition)
    from waltz.spark.pipelines.archive import archive_lag

    lag = archive_lag(_access(wanted), wanted.target, partitions=wanted.partitions)
    rows = [
        {"partition": each.partition_id, "archived": each.archived, "log": each.logged}
        for each in lag
    ]
    behind = sum(each.logged - each.archived for each in lag)
    lines = [
        f"partition {each.partition_id}: {each.archived:,} of {each.logged:,} transactions"
        for each in lag
    ]
    lines.append(f"{behind:,} behind" if behind else "up to date")
    _show(as_json, {"partitions": rows, "behind": behind}, "\n".join(lines))


@pipeline.command()
@FILE
@JSON
def verify(definition: Path, as_json: bool) -> None:
    """Compare all of the target with the log; exit with 1 if they differ."""
    wanted = _read(definition)
    from waltz.spark.pipelines.archive import verify_archive

    with _session(wanted) as spark:
        report = verify_archive(spark, _access(wanted), wanted.target)
    equal = not report.differences
    found = f"equal: {report.transactions:,} transactions in {report.files} files"
    _show(
        as_json,
        {
            "equal": equal,
            "transactions": report.transactions,
            "files": report.files,
            "differences": list(report.differences),
        },
        found if equal else "\n".join(("different:", *report.differences)),
    )
    if not equal:
        sys.exit(1)


@pipeline.command()
@FILE
@JSON
def rebuild(definition: Path, as_json: bool) -> None:
    """Make the target anew from the log, beside the old one, and put it in the old one's place."""
    wanted = _read(definition)
    from waltz.spark.pipelines.archive import rebuild_archive

    with _session(wanted) as spark:
        report = rebuild_archive(
            spark, _access(wanted), wanted.target, partitions=wanted.partitions
        )
    _show(
        as_json,
        {"transactions": report.transactions, "files": report.files, "bytes": report.byte_count},
        f"rebuilt with {report.transactions:,} transactions in {report.files} files",
    )


def _read(path: Path) -> PipelineDefinition:
    try:
        from waltz.spark.pipelines.definition import parse_definition
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: run `pip install 'waltz-log[spark]'`"
        ) from error
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    return parse_definition(text, directory=path.absolute().parent)


def _access(wanted: PipelineDefinition) -> Any:
    from waltz.spark.tasks import LogAccess

    return LogAccess(wanted.cluster, wanted.tls)


@contextmanager
def _session(wanted: PipelineDefinition) -> Iterator[SparkSession]:
    from waltz.spark import spark_session

    with Console(stderr=True).status(f"{wanted.kind}: {wanted.cluster} and {wanted.target}"):
        spark = spark_session(f"waltz {wanted.kind}", **wanted.spark)
        try:
            yield spark
        finally:
            spark.stop()


def _show(as_json: bool, facts: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(facts, indent=2) if as_json else text)
