"""The whole job on real data, on one machine: `python -m demo`.

A cluster is started. Four processes write flights to its log and apply them to a database, while
one of the cluster's storage nodes is killed. Spark streams the log into tables, proves them equal
to it, and compares the storage nodes' copies of it. Then source, log, database and tables are
compared, and must agree; only after that the report is written, with the verdict on it.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
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

from demo.cluster import Cluster, DemoError, last_lines, running_cluster, stop
from demo.database import open_database
from demo.flights import FLIGHT_COUNT, JANUARY_COUNT, flights_file
from demo.report import Proof, write_report
from demo.story import Story
from demo.submission import Run, Submission, submitters
from demo.verify import Tables

PARTITIONS: Final = 4
SERVERS: Final = 1
SUBMITTERS: Final = 4
MARKER: Final = "waltz-demo-output"
"""A file that marks a directory as one that this program may empty."""

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Places:
    """The directories and files of a run."""

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
        """Lock the directory for this run, and empty it.

        Raises DemoError, and touches nothing: another run has it, or it holds files that are not
        from an earlier run.
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
    story = Story(lambda line: console.print(line, soft_wrap=True))
    async with running_cluster(
        places.cluster,
        places.logs / "cluster.log",
        partition_count=PARTITIONS,
        server_count=SERVERS,
    ) as cluster:
        story.tell("cluster", f"{cluster.summary} is up")
        story.mention("cluster", f"logs are in {places.logs}")
        submission = await submit(places, cluster, total, seed, story)
        proofs = await derive(places, cluster, story)
        proofs.append(await compare(places, cluster, total, story))
        members = cluster.members
    write_report(
        places.report,
        Tables(places.tables),
        proofs=proofs,
        moments=story.moments,
        members=members,
        submission=submission,
    )
    story.tell("report", str(places.report))
    console.print(f"demo: OK, {total:,} transactions agree on all sides")


async def submit(
    places: Places, cluster: Cluster, total: int, seed: int, story: Story
) -> Submission:
    """Write all flights, and show how it goes."""

    def arguments(share: int) -> list[str]:
        return [
            *("--cluster", cluster.coordinator, "--database", str(places.database)),
            *("--share", f"{share}/{SUBMITTERS}", "--limit", str(total)),
        ]

    # Made once, before several processes would make it at the same time.
    open_database(places.database).dispose()
    story.tell(
        "flights",
        f"{SUBMITTERS} processes begin to write {total:,} flights, each under a lock on its"
        " aircraft, and apply the log to one SQLite database",
    )
    columns = (
        TextColumn("          flights"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total, rate=0.0)

        def show(result: Submission) -> None:
            rate = result.rates[-1][1] if result.rates else 0.0
            progress.update(task, completed=result.counts["applied"], rate=rate)

        async with submitters(arguments, places.logs, SUBMITTERS) as started:
            submission = await Run(cluster, started, total, seed, story).watch(show)
    story.tell(
        "applied",
        f"all {total:,} flights are in the log and in the database,"
        f" {submission.transactions_per_second:,.0f} per second;"
        f" {submission.counts['conflicts']:,} appends were refused by a lock and tried again",
    )
    return submission


async def derive(places: Places, cluster: Cluster, story: Story) -> list[Proof]:
    """Have Spark make the tables and prove them; return the proofs."""
    arguments = ["--cluster", cluster.coordinator, "--directory", str(places.tables)]
    proofs = []
    with status("Spark starts"):
        async with aclosing(part(places, "tables", arguments)) as done:
            async for said in done:
                text, proof = told_of(said)
                story.tell(said["part"], f"{text}; it took {said['seconds']:.1f} s")
                proofs += [proof] if proof else []
    return proofs


def told_of(said: dict[str, Any]) -> tuple[str, Proof | None]:
    """Return a part of the Spark job as text, and as a proof if the part is one."""
    match said["part"]:
        case "session":
            return "Spark has started", None
        case "stream":
            return "a stream has decoded the whole log into a Parquet table of events", None
        case "delays":
            return f"quantiles of delays are made from {said['rows']:,} events", None
        case "tables":
            return f"a pipeline has folded the log into {said['tables']} SQLite tables", None
        case "verify":
            text = (
                f"the pipeline's tables equal a second fold of {said['transactions']:,}"
                f" transactions, {said['differences']} differences"
            )
            return text, Proof(
                "The derived tables equal the log",
                f"Spark folds all {said['transactions']:,} transactions again and compares every"
                " row of every table with the fold.",
                f"{said['differences']} differences",
            )
        case "audit":
            verdict = "equal" if said["equal"] else "different or not complete"
            text = (
                f"{said['copies']} storage nodes' copies of {said['transactions']:,} transactions"
                f" are {verdict}"
            )
            return text, Proof(
                "The replicas hold the same log",
                f"The copies of {said['copies']} storage nodes are read from each node itself and"
                f" compared, {said['transactions']:,} transactions.",
                verdict,
            )
    raise DemoError(f"the Spark job printed an unknown part: {said}")


async def compare(places: Places, cluster: Cluster, total: int, story: Story) -> Proof:
    """Compare source, log, database and tables. Raises DemoError: they differ, with the place."""
    arguments = [
        *("--cluster", cluster.coordinator, "--limit", str(total)),
        *("--database", str(places.database), "--tables", str(places.tables)),
    ]
    with status("comparing source, log, database and tables"):
        async with aclosing(part(places, "verify", arguments)) as done:
            verified = [said async for said in done][-1]
    text = (
        f"source, log, database and Spark's tables agree: {verified['transactions']:,}"
        f" transactions, {verified['aircraft']:,} aircraft, {verified['summary_rows']:,} rows of"
        " summaries, each compared"
    )
    story.tell("compare", text)
    return Proof(
        "Nothing is lost, doubled, reordered or changed",
        "Without Spark and without the pipeline's code: every flight of the source file is in the"
        " log once and byte for byte, the legs of each aircraft follow one another, and the"
        " database and Spark's event table have the same transactions; aircraft and summaries"
        " are added up again by SQL.",
        f"{verified['transactions']:,} transactions, {verified['aircraft']:,} aircraft and"
        f" {verified['summary_rows']:,} rows of summaries agree",
    )


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show on a terminal that `text` is under way."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        yield


async def part(
    places: Places, name: str, arguments: list[str]
) -> AsyncGenerator[dict[str, Any], None]:
    """Run one part of the job in a process of its own, and yield its output, line by line.

    Raises DemoError: it failed, with the last lines of its log.
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
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield json.loads(line)
        await process.wait()
    finally:
        await stop(process)
    if process.returncode != 0:
        raise DemoError(f"{name} failed:\n{last_lines(log)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=JANUARY_COUNT,
        help="how many flights, in the order of the file; default: those of January",
    )
    parser.add_argument(
        "--full",
        action="store_const",
        const=FLIGHT_COUNT,
        dest="limit",
        help="the whole year",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of which node is killed, and when"
    )
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
