"""`waltz pipeline`: jobs that derive data from the log, run on Spark from a file each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.http_options import http_options, refuse_unsafe_tokens
from waltz.cli.tls_options import tls_options
from waltz.errors import ConfigurationError
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltz.spark.pipelines.archiving import ArchiveReport
    from waltz.spark.pipelines.definition import PipelineDefinition
    from waltz.spark.pipelines.derived import TablesReport
    from waltz.spark.pipelines.lineage_events import LineageRuns
    from waltz.spark.pipelines.watch import PipelineWatch
    from waltz.spark.progress import PartitionLag
    from waltz.types import HttpAccess

FILE = click.argument("definition", type=click.Path(dir_okay=False, path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


EVERY = click.option(
    "--every",
    type=click.FloatRange(min=0.1, max=86_400),
    metavar="SECONDS",
    help="Run until stopped; look for new transactions every SECONDS.",
)
HTTP_ADDRESS = click.option(
    "--http-address",
    metavar="HOST:PORT",
    help="With --every: /health, /live, /metrics; default: no HTTP.",
)


@click.group()
def pipeline() -> None:
    """Derive data from the log with Spark: run, look at, prove and rebuild.

    DEFINITION is a YAML file: pipeline (archive, tables or audit), cluster, target, and if need be
    partitions, tls (ca, cert, key) and spark (its settings); for tables also tables, decode,
    archive, transactionsPerBatch and report; for tables and archives lineage; for an audit also
    archive. The cluster is waltz://host:port,host:port (servers) or the coordinator.
    """


@pipeline.command()
@FILE
@EVERY
@HTTP_ADDRESS
@http_options()
@click.option(
    "--drop",
    multiple=True,
    metavar="TABLE",
    help="Drop this table, which the definition no longer has.",
)
@JSON
def run(
    definition: Path,
    every: float | None,
    http_address: str | None,
    http_access: HttpAccess,
    drop: tuple[str, ...],
    as_json: bool,
) -> None:
    """Take in what the log has beyond the target, which is created if missing.

    Tables that the definition has anew, or otherwise than before, are derived from the past first.

    An audit compares the copies of the log, and ends with 1 once they are not equal, or not all of
    them could be compared.
    """
    wanted = _read(definition)
    if http_address is not None and (every is None or wanted.kind == "audit"):
        raise ConfigurationError(
            "--http-address is for a pipeline that keeps something and runs with --every"
        )
    if drop and wanted.kind != "tables":
        raise ConfigurationError(f"--drop is for a pipeline of tables; {definition} is none")
    if wanted.kind == "audit":
        _audit(wanted, every, as_json)
        return
    with (
        _watched(wanted, every, http_address, http_access) as watch,
        _told(wanted) as lineage,
        _session(wanted) as spark,
    ):
        _show(as_json, *_taken_in(spark, wanted, watch, lineage, drop))
        while every is not None:
            time.sleep(every)
            facts, text = _taken_in(spark, wanted, watch, lineage)
            if facts["transactions"]:
                _show(as_json, facts, text)


@pipeline.command()
@FILE
@click.option(
    "--cluster",
    required=True,
    envvar="WALTZ_CLUSTER",
    help="The log to look at: waltz://host:port,host:port (servers) or the coordinator.",
)
@click.option(
    "--target",
    default="tables.db",
    show_default=True,
    help="Where the tables are to be kept, relative to the definition.",
)
@click.option(
    "--transactions",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Look at this number of the newest transactions, in equal parts of all partitions.",
)
@tls_options
@JSON
def init(
    definition: Path, cluster: str, target: str, transactions: int, tls: TlsSettings, as_json: bool
) -> None:
    """Write a first definition of tables, drafted from the newest transactions of the log.

    It has the fields that their data has, a table with a row for each header, and a table of the
    field that looks most like a key. Does not need Spark. An existing file is left alone.
    """
    from waltz.cli.pipeline_draft import write_draft

    _show(as_json, *write_draft(definition, cluster, target, transactions, tls))


@pipeline.command()
@FILE
@JSON
def status(definition: Path, as_json: bool) -> None:
    """Show what the target has and how far it is behind the log."""
    from waltz.spark.followed_metrics import verify_json
    from waltz.spark.pipelines.last_verify import read_record

    wanted = _read_derived(definition)
    found = _lag(wanted)
    verified = read_record(wanted.target, url=wanted.url)
    if verified is not None and verified.transactions > sum(each.taken_in for each in found):
        verified = None  # it is of a target that was there before
    rows = [
        {"partition": each.partition_id, "taken_in": each.taken_in, "log": each.logged}
        for each in found
    ]
    behind = sum(each.logged - each.taken_in for each in found)
    lines = [
        f"partition {each.partition_id}: {each.taken_in:,} of {each.logged:,} transactions"
        for each in found
    ]
    if verified is not None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(verified.verified_at // 1000))
        said = "equal" if verified.is_equal else f"{verified.differences:,} differences"
        lines.append(f"verified {when}, {verified.transactions:,} transactions: {said}")
    lines.append(f"{behind:,} behind" if behind else "up to date")
    facts = {
        "kind": wanted.kind,
        "target": wanted.place,
        "partitions": rows,
        "behind": behind,
        "last_verify": None if verified is None else verify_json(verified),
    }
    _show(as_json, facts, "\n".join(lines))


@pipeline.command()
@FILE
@JSON
def verify(definition: Path, as_json: bool) -> None:
    """Compare all of the target with the log; exit with 1 if they differ.

    Tables are recomputed in another way than `run` does it. For each difference it names the first
    transaction after which there is one, and the expected and found values of each column.
    """
    wanted = _read_derived(definition)
    with _session(wanted) as spark:
        if wanted.kind == "archive":
            from waltz.spark.pipelines.archiving import verify_archive

            archived = verify_archive(spark, _access(wanted), wanted.archive_location)
            facts: dict[str, Any] = {
                "transactions": archived.transactions,
                "files": archived.files,
            }
            text = f"equal: {archived.transactions:,} transactions in {archived.files} files"
            lines = [str(each) for each in archived.differences]
            differences = [each.to_json() for each in archived.differences]
        else:
            from waltz.spark.pipelines.proof import verify as verify_tables

            proof = verify_tables(spark, _access(wanted), wanted)
            facts = {
                "transactions": proof.transactions,
                "undecodable": proof.undecodable,
                "more": dict(proof.more),
            }
            text = f"equal: the tables of {proof.transactions:,} transactions"
            lines = [
                *map(str, proof.differences),
                *(f"and {count:,} more rows of table {name}" for name, count in proof.more.items()),
            ]
            differences = [each.to_json() for each in proof.differences]
    _record(wanted, facts["transactions"], len(differences))
    found = {"equal": not differences, **facts, "differences": differences}
    _show(as_json, found, "\n".join(("different:", *lines)) if differences else text)
    if differences:
        sys.exit(1)


@pipeline.command()
@FILE
@JSON
def rebuild(definition: Path, as_json: bool) -> None:
    """Rebuild the target from the log next to the old one, then replace the old one."""
    from waltz.spark.pipelines.last_verify import remove_record
    from waltz.spark.pipelines.watch import NOBODY

    wanted = _read_derived(definition)
    with _told(wanted, rebuild=True) as lineage, _session(wanted) as spark:
        watch = NOBODY if lineage is None else lineage
        access = _access(wanted)
        if wanted.kind == "archive":
            from waltz.spark.pipelines.archiving import rebuild_archive

            target, parts = wanted.archive_location, wanted.partitions
            facts, text = _archived(
                rebuild_archive(spark, access, target, partitions=parts, watch=watch)
            )
        else:
            from waltz.spark.pipelines import derived

            facts, text = _derived(derived.rebuild(spark, access, wanted, watch))
        if lineage is not None:
            lineage.pass_ended()
    remove_record(wanted.target)
    _show(as_json, facts, text)


@pipeline.command()
@FILE
@click.option(
    "--retention-hours",
    type=click.IntRange(min=0, max=87_600),
    default=168,
    show_default=True,
    help="Keep what versions and changes of the last HOURS need, and younger files.",
)
@click.option("--delete", is_flag=True, help="Delete; otherwise only say what would be deleted.")
@JSON
def tidy(definition: Path, retention_hours: int, delete: bool, as_json: bool) -> None:
    """Find, or with --delete remove, what only versions older than the retained time need.

    Of Delta and Iceberg tables these are replaced files, and files that killed runs left; of an
    archive that is a Delta table the latter; of tables in SQLite the changes that are kept for
    readers. Reads neither the cluster nor Spark.
    """
    wanted = _read(definition)
    if wanted.target_kind == "sqlite" and wanted.changes is None:
        raise ConfigurationError(
            f"{definition} has no Delta or Iceberg table, and keeps no `changes`; only these are"
            " tidied"
        )
    if wanted.kind == "archive":
        from waltz.spark.pipelines.archiving import tidy_archive

        found = [tidy_archive(wanted.archive_location, retention_hours, delete=delete)]
    else:
        from waltz.spark.pipelines.open_tables import open_tables

        with open_tables(wanted, create=False) as store:
            found = store.tidy(retention_hours, delete=delete)
    facts = {
        "deleted": delete,
        "tables": [
            {
                "table": each.table,
                "bytes": each.byte_count,
                "files": list(each.files),
                "changes": each.changes,
            }
            for each in found
        ],
    }
    done = "deleted" if delete else "would delete"
    lines = [
        f"{each.table}: {done} {each.changes:,} changes"
        if wanted.target_kind == "sqlite"
        else f"{each.table}: {done} {len(each.files):,} files, {each.byte_count:,} bytes"
        for each in found
    ]
    _show(as_json, facts, "\n".join(lines))


@pipeline.command()
@FILE
@click.argument("table")
@click.option(
    "--after",
    metavar="POSITION",
    help="The position that an earlier call printed; without it the whole table comes as inserts.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="CHANGES",
    help="End with the commit that comes to this number of changes.",
)
@JSON
def changes(
    definition: Path, table: str, after: str | None, limit: int | None, as_json: bool
) -> None:
    """Show which rows of TABLE each commit after a position has changed.

    Each change is told once, in whole commits, and last the position with which to ask for the next
    ones. Changes that were tidied away, and a table that was made anew, are refused with
    WALTZ-2018: read the whole table then. Reads neither the cluster nor Spark.
    """
    from waltz.cli.pipeline_changes import show_changes

    show_changes(_read(definition), table, after, limit, as_json=as_json)


@pipeline.command()
@FILE
def report(definition: Path) -> None:
    """Write the report on the tables; reads neither the cluster nor Spark."""
    wanted = _read(definition)
    if wanted.report is None:
        raise ConfigurationError(f"{definition} has no `report`; see docs/pipelines.md")
    try:
        from waltz.spark.pipelines.report import write_report
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: run `pip install '.[report]'` in a checkout of Waltz"
        ) from error
    write_report(wanted.report, wanted.target)
    click.echo(str(wanted.report.target))


def _audit(wanted: PipelineDefinition, every: float | None, as_json: bool) -> None:
    from waltz.spark.pipelines.audit import audit

    with _session(wanted) as spark:
        while True:
            seen = audit(spark, _access(wanted), wanted)
            _show(as_json, seen.to_json(), seen.to_text())
            if not seen.is_equal:
                break
            if every is None:
                return
            time.sleep(every)
    sys.exit(1)


@contextmanager
def _watched(
    wanted: PipelineDefinition,
    every: float | None,
    address: str | None,
    access: HttpAccess,
) -> Iterator[PipelineWatch | None]:
    """Yield what the run has to tell, and answer scrapers with it; None: nobody asks."""
    if address is None or every is None:
        yield None
        return
    from waltz.cli.pipeline_port import served
    from waltz.spark.pipelines.watch import PipelineWatch
    from waltz.types import Address

    at = Address.parse(address)
    refuse_unsafe_tokens(at, access)
    watch = PipelineWatch(wanted, every)
    with served(at, watch.state, access) as url:
        click.echo(f"metrics at {url}/metrics", err=True)
        yield watch


def _told(
    wanted: PipelineDefinition, *, rebuild: bool = False
) -> AbstractContextManager[LineageRuns | None]:
    """Yield what tells a backend of lineage of each pass; None: the definition asks for none."""
    if wanted.lineage is None:
        return nullcontext()
    from waltz.spark.pipelines.lineage_shell import told_lineage

    return told_lineage(wanted, rebuild=rebuild)


def _taken_in(
    spark: SparkSession,
    wanted: PipelineDefinition,
    watch: PipelineWatch | None,
    lineage: LineageRuns | None,
    drop: tuple[str, ...] = (),
) -> tuple[dict[str, Any], str]:
    from waltz.spark.pipelines.watch import Watchers

    told = Watchers(*(each for each in (watch, lineage) if each is not None))
    if lineage is not None:
        lineage.pass_begins()
    if wanted.kind == "archive":
        from waltz.spark.pipelines.archiving import add_to_archive

        access, parts = _access(wanted), wanted.partitions
        found = _archived(
            add_to_archive(spark, access, wanted.archive_location, partitions=parts, watch=told)
        )
    else:
        from waltz.spark.pipelines.derived import take_in

        tell = partial(click.echo, err=True)
        found = _derived(take_in(spark, _access(wanted), wanted, told, drop=drop, tell=tell))
    if lineage is not None:
        lineage.pass_ended(tuple(found[0].get("dropped", ())))
    if watch is not None:
        from waltz.spark.pipelines.last_verify import read_record

        watch.round_ended(_lag(wanted))
        watch.verify_is(read_record(wanted.target, url=wanted.url))
    return found


def _lag(wanted: PipelineDefinition) -> list[PartitionLag]:
    """Ask the log, and the target, how far they are."""
    if wanted.kind == "archive":
        from waltz.spark.pipelines.archiving import archive_lag

        return archive_lag(_access(wanted), wanted.archive_location, partitions=wanted.partitions)
    from waltz.spark.pipelines.derived import lag

    return lag(_access(wanted), wanted)


def _record(wanted: PipelineDefinition, transactions: int, differences: int) -> None:
    """Note the result of a verify next to the target."""
    from waltz.spark.followed_metrics import LastVerify
    from waltz.spark.pipelines.last_verify import record_path, write_record

    try:
        found = LastVerify(int(time.time() * 1000), transactions, differences)
        write_record(wanted.target, found, url=wanted.url)
    except OSError as error:
        path = record_path(wanted.target)
        click.echo(f"cannot note the result in {path}: {error.strerror}", err=True)


def _archived(report: ArchiveReport) -> tuple[dict[str, Any], str]:
    facts = {
        "transactions": report.transactions,
        "files": report.files,
        "bytes": report.byte_count,
        "swept": list(report.swept),
    }
    return facts, (
        f"archived {report.transactions:,} transactions in {report.files} files,"
        f" {report.byte_count:,} bytes"
    )


def _derived(report: TablesReport) -> tuple[dict[str, Any], str]:
    facts = {
        "transactions": report.transactions,
        "batches": report.batches,
        "undecodable": report.undecodable,
        "backfilled": list(report.backfilled),
        "dropped": list(report.dropped),
    }
    aside = f", {report.undecodable:,} of them undecodable" if report.undecodable else ""
    lines = [
        *(f"table {each} is derived from the past, too" for each in report.backfilled),
        *(f"table {each} is dropped" for each in report.dropped),
        f"took in {report.transactions:,} transactions{aside}",
    ]
    return facts, "\n".join(lines)


def _read(path: Path) -> PipelineDefinition:
    try:
        from waltz.spark.pipelines.definition import parse_definition
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: run `pip install '.[spark]'` in a checkout of Waltz"
        ) from error
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"cannot read {path}: not UTF-8 at byte {error.start}") from None
    return parse_definition(text, directory=path.absolute().parent)


def _read_derived(path: Path) -> PipelineDefinition:
    """Return the definition. Raises ConfigurationError: it derives nothing."""
    wanted = _read(path)
    if wanted.kind == "audit":
        raise ConfigurationError(
            f"{path} is an audit, which keeps nothing; use `waltz pipeline run`"
        )
    return wanted


def _access(wanted: PipelineDefinition) -> Any:
    from waltz.spark.tasks import LogAccess

    return LogAccess(wanted.cluster, wanted.tls)


@contextmanager
def _session(wanted: PipelineDefinition) -> Iterator[SparkSession]:
    from rich.console import Console

    from waltz.spark import spark_session

    with Console(stderr=True).status(f"{wanted.kind}: {wanted.cluster} and {wanted.place}"):
        spark = spark_session(f"waltz {wanted.kind}", **wanted.spark)
        try:
            yield spark
        finally:
            spark.stop()


def _show(as_json: bool, facts: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(facts, indent=2) if as_json else text)
