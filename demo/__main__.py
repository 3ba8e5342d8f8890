"""The whole job on real data, on one machine: `python -m demo`.

A cluster is started. Four processes write a year of flights to its log and apply them to a
database, while one of the cluster's storage nodes is killed. Spark streams the log into tables,
proves them equal to it, and compares the storage nodes' copies of it. A report is written. At the
end source, log, database and tables are compared and must agree.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from demo.cluster import Cluster, DemoError, last_lines, running_cluster, stop
from demo.database import open_database
from demo.flights import FLIGHT_COUNT, flights_file
from demo.report import write_report
from demo.submission import Run, Submission, submitters
from demo.verify import Tables

PARTITIONS: Final = 4
SERVERS: Final = 1
SUBMITTERS: Final = 4
MARKER: Final = "waltz-demo-output"
"""A file that says that a directory is ours to empty."""

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything of a run lies."""

    directory: Path

    @property
    def cluster(self) -> Path:
        return self.directory / "cluster"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def database(self) -> Path:
        return self.directory / "flights.db"

    @property
    def tables(self) -> Path:
        return self.directory / "tables"

    @property
    def report(self) -> Path:
        return self.directory / "report.html"

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Have the directory for this run alone, empty.

        Raises DemoError, and touches nothing: another run has it, or it holds what is not from a
        run before.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = list(self.directory.iterdir())
            if found and self.directory / MARKER not in found:
                raise DemoError(f"{self.directory} is not empty and not from an earlier demo")
            for path in found:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.logs.mkdir()
            (self.directory / MARKER).touch()
            yield
        except BlockingIOError:
            raise DemoError(
                f"another demo runs in {self.directory}; give this one another --directory"
            ) from None
        finally:
            os.close(descriptor)


async def run(places: Places, total: int, seed: int) -> None:
    """Do the whole job. Raises DemoError: something failed, or not everything agrees."""
    started = time.monotonic()
    console.print(f"starting a cluster of {PARTITIONS} partitions; logs are in {places.logs}")
    async with running_cluster(
        places.cluster,
        places.logs / "cluster.log",
        partition_count=PARTITIONS,
        server_count=SERVERS,
    ) as cluster:
        submission = await submit(places, cluster, total, seed)
        to_cluster = ["--cluster", cluster.coordinator]
        with console.status("Spark turns the log into tables, and proves them"):
            spark = await part(places, "tables", [*to_cluster, "--directory", str(places.tables)])
        facts = run_facts(submission, spark)
        with console.status("drawing the report"):
            write_report(
                places.report,
                Tables(places.tables),
                facts=facts,
                rates=submission.rates,
                killed_at=submission.killed_at,
            )
        with console.status("comparing source, log, database and tables"):
            sides = ["--database", str(places.database), "--tables", str(places.tables)]
            verified = await part(places, "verify", [*to_cluster, *sides, "--limit", str(total)])
    facts.append(("agree on all sides", f"{verified['transactions']:,} transactions"))
    facts.append(("everything took", f"{time.monotonic() - started:.0f} s"))
    show_figures(facts, places)


async def submit(places: Places, cluster: Cluster, total: int, seed: int) -> Submission:
    """Write all flights, and show how it goes."""

    def arguments(share: int) -> list[str]:
        return [
            *("--cluster", cluster.coordinator, "--database", str(places.database)),
            *("--share", f"{share}/{SUBMITTERS}", "--limit", str(total)),
        ]

    # Made once, before several processes would make it at the same time.
    open_database(places.database).dispose()
    columns = (
        TextColumn("flights"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[conflicts]:,} lock conflicts"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, rate=0.0, conflicts=0)

        def show(result: Submission) -> None:
            rate = result.rates[-1][1] if result.rates else 0.0
            if result.seconds:
                rate = result.transactions_per_second
            counts = result.counts
            progress.update(
                task, completed=counts["applied"], rate=rate, conflicts=counts["conflicts"]
            )

        async with submitters(arguments, places.logs, SUBMITTERS) as started:
            return await Run(cluster, started, total, seed).watch(show)


async def part(places: Places, name: str, arguments: list[str]) -> dict[str, Any]:
    """Run one part of the job in a process of its own and return what it says.

    Raises DemoError: it failed, with the last lines it said.
    """
    log = places.logs / f"{name}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"demo.{name}", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        output, _ = await process.communicate()
    finally:
        await stop(process)
    if process.returncode != 0:
        raise DemoError(f"{name} failed:\n{last_lines(log)}")
    said: dict[str, Any] = json.loads(output)
    return said


def run_facts(submission: Submission, spark: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of the run, as label and value."""
    counts = submission.counts
    return [
        ("transactions", f"{counts['applied']:,}"),
        ("transactions per second", f"{submission.transactions_per_second:,.0f}"),
        ("lock conflicts", f"{counts['conflicts']:,}"),
        ("retries", f"{submission.retries:,}"),
        ("killed on the way", f"{submission.storage} after {submission.killed_at:.1f} s"),
        ("longest pause after it", f"{submission.pause_seconds * 1000:,.0f} ms"),
        ("it ran again after", f"{submission.restart_seconds * 1000:,.0f} ms"),
        ("rows per second into Spark", f"{spark['rows'] / spark['stream_seconds']:,.0f}"),
        ("Spark start", f"{spark['session_seconds']:.1f} s"),
        ("Spark stream", f"{spark['stream_seconds']:.1f} s"),
        ("quantiles of delays", f"{spark['delays_seconds']:.1f} s"),
        ("tables kept by a pipeline", f"{spark['tables_seconds']:.1f} s"),
        ("tables proven equal to the log", f"{spark['verify_seconds']:.1f} s"),
        ("copies of the log compared", f"{spark['audit_seconds']:.1f} s"),
    ]


def show_figures(facts: list[tuple[str, str]], places: Places) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in facts:
        table.add_row(f"[dim]{label}[/]", value)
    table.add_row("[dim]report[/]", str(places.report))
    console.print(table)
    console.print("demo: OK")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--limit", type=int, default=FLIGHT_COUNT, help="how many flights")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed, and when")
    parser.add_argument("--directory", type=Path, default=Path("demo-output"))
    given = parser.parse_args()
    if not 1 <= given.limit <= FLIGHT_COUNT:
        parser.error(f"--limit is {given.limit}; expected 1 to {FLIGHT_COUNT}")
    flights_file()
    try:
        places = Places(given.directory.absolute())
        with places.emptied():
            asyncio.run(run(places, given.limit, given.seed))
    except DemoError as error:
        console.print(f"[red]demo: failed[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
