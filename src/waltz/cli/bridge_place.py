"""`waltz bridge status` and `skip`: the progress of a bridge, beside the log.

Owns what is shown and asked. The progress of a webhook is a file, which a bridge that runs has for
itself: it is shown as the file has it, and changed only while no bridge runs. That of Kafka is in
Kafka (`bridge_kafka.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.command_settings import read_settings
from waltz.cli.moments import moment
from waltz.cli.nodes import run_loop
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.configuration.bridge_settings import (
    BRIDGE_CLUSTER,
    BRIDGE_KEYS,
    BRIDGE_TLS,
    PROGRESS,
    bridge_settings,
)
from waltz.configuration.kafka_bridge_settings import (
    KAFKA_BRIDGE_KEYS,
    KAFKA_SERVERS,
    is_for_kafka,
    kafka_bridge_settings,
)
from waltz.configuration.settings import Given, Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.errors import ConfigurationError, DirectoryInUseError, WaltzError

if TYPE_CHECKING:
    from waltz import AsyncLogReader
    from waltz.bridge.bridge_progress import BridgeProgress, PartitionProgress, ProgressFile
    from waltz.cluster.histories import Histories

BRIDGE_FILE = click.argument("file", type=click.Path(dir_okay=False))


def read_bridge(path: str) -> Settings:
    """Return the settings of a bridge; warnings go to standard error. Raises
    ConfigurationError."""
    return _with_warnings(read_settings(path, {}, BRIDGE_KEYS, bridge_settings))


def read_kafka_bridge(path: str) -> Settings:
    """Return the settings of a bridge to Kafka; warnings go to standard error. Raises
    ConfigurationError."""
    return _with_warnings(read_settings(path, {}, KAFKA_BRIDGE_KEYS, kafka_bridge_settings))


def _read_any(path: str) -> Settings:
    """Return the settings of a bridge to whatever its file names. Raises ConfigurationError."""

    def judged(given: Mapping[str, Given]) -> Settings:
        return kafka_bridge_settings(given) if is_for_kafka(given) else bridge_settings(given)

    return _with_warnings(read_settings(path, {}, (), judged))


def _with_warnings(settings: Settings) -> Settings:
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    return settings


def progress_file(settings: Settings) -> ProgressFile:
    """Return the file itself if a link is named: a link would be replaced, and have a lock of its
    own."""
    from waltz.bridge.bridge_progress import ProgressFile
    from waltz.system.real_disk import RealDisk

    return ProgressFile(RealDisk(), os.path.realpath(settings[PROGRESS]))


@contextmanager
def _told(progress_at: ProgressFile) -> Iterator[None]:
    """Raises ConfigurationError if the block raises OSError, as for a file of another user."""
    try:
        yield
    except OSError as error:
        text = f"{PROGRESS.name}: {error.strerror}: {progress_at.path}"
        raise ConfigurationError(text) from error


def bridge_reader(settings: Settings) -> AsyncLogReader:
    import waltz

    tls = tls_settings(settings, BRIDGE_TLS, listens=False)
    return waltz.open_async_reader(settings[BRIDGE_CLUSTER], tls=tls, name="bridge")


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a bridge and the ends of the log.

    progress  None: the bridge has not begun, or that is not known.
    is_known  whether the progress is known.
    in_use    whether a process works with the progress; None: unknown.
    ends      per partition the ID after the last transaction, if the cluster tells it.
    trouble   why something is not known; None: everything is.
    """

    where: str
    progress: BridgeProgress | None
    in_use: bool | None
    ends: Mapping[int, int]
    trouble: str | None
    is_known: bool = True

    @property
    def has_begun(self) -> bool | None:
        """Whether the bridge has begun; None: unknown."""
        return self.progress is not None if self.is_known else None


@click.command("status")
@BRIDGE_FILE
@json_option
def bridge_status(file: str, as_json: bool) -> None:
    """Show how far a bridge is, and what it lacks.

    The places are those of the progress, the ends those that the cluster tells now. Why a partition
    waits the bridge itself tells, at its /health.
    """
    settings = _read_any(file)
    if settings.get(KAFKA_SERVERS) is None:
        standing = _standing(settings)
    else:
        from waltz.cli.bridge_kafka import kafka_standing

        standing = kafka_standing(settings)
    progress = standing.progress
    partitions = {} if progress is None else progress.partitions
    ends = standing.ends
    rows = [_row(each, place, ends.get(each)) for each, place in sorted(partitions.items())]
    if as_json:
        print_json(_json(standing, rows))
        return
    runs = {True: "yes", False: "no", None: "unknown"}[standing.in_use]
    begun = {True: "", False: ", not begun", None: ", unknown"}[standing.has_begun]
    click.echo(f"progress: {standing.where}{begun}")
    click.echo(f"in use by a process: {runs}")
    if progress is not None:
        click.echo(f"cluster: {progress.cluster_key}")
        table = new_table("partition", "next", "end of log", "waiting", "history")
        for each in rows:
            shown = ("unknown" if value is None else str(value) for value in each.values())
            table.add_row(*shown)
        print_table(table)
        for skip in progress.skips:
            click.echo(
                f"skipped: partition {skip.partition_id}, {skip.first} to {skip.last}, at"
                f" {moment(skip.at_milliseconds)}: {skip.reason!r}"
            )
    if standing.trouble is not None:
        click.echo(f"the cluster does not tell its ends: {standing.trouble}", err=True)


def _standing(settings: Settings) -> Standing:
    progress_at = progress_file(settings)
    with _told(progress_at):
        progress = progress_at.load()
    ends, trouble = run_loop(_ends(settings, progress, progress_at.path))
    return Standing(progress_at.path, progress, _is_locked(progress_at), ends, trouble)


def _row(partition_id: int, place: PartitionProgress, end: int | None) -> dict[str, Any]:
    """Return what is shown of a partition. `waiting` counts transactions of all headers."""
    return {
        "partition": partition_id,
        "next": place.next_id,
        "end": end,
        "waiting": None if end is None else end - place.next_id,
        "history": str(place.history),
    }


def _json(standing: Standing, rows: list[dict[str, Any]]) -> dict[str, Any]:
    progress = standing.progress
    skips = () if progress is None else progress.skips
    return {
        "has_begun": standing.has_begun,
        "in_use": standing.in_use,
        "cluster_key": None if progress is None else str(progress.cluster_key),
        "partitions": rows,
        "skips": [
            {
                "partition": each.partition_id,
                "first": each.first,
                "last": each.last,
                "reason": each.reason,
                "at": moment(each.at_milliseconds),
            }
            for each in skips
        ],
        "forgotten_skips": 0 if progress is None else progress.forgotten_skips,
        "trouble": standing.trouble,
    }


def _is_locked(file: ProgressFile) -> bool | None:
    """Return whether a process works with the progress; None: this user may not ask."""
    try:
        return file.is_locked()
    except OSError:
        return None


async def _ends(
    settings: Settings, progress: BridgeProgress | None, path: str
) -> tuple[dict[int, int], str | None]:
    """Return the ID after the last transaction of each partition of the progress, or why they are
    not known."""
    if progress is None:
        return {}, None
    from waltz.types import PartitionId

    try:
        async with bridge_reader(settings) as reader:
            progress.check_cluster(reader.cluster_key, path)
            marks = await reader.high_water_marks(list(map(PartitionId, progress.partitions)))
            return {each: mark + 1 for each, mark in marks.items()}, None
    except (WaltzError, OSError) as error:
        return {}, str(error)


@click.command("skip")
@BRIDGE_FILE
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("first", type=click.IntRange(min=0))
@click.argument("last", type=click.IntRange(min=0))
@click.option("--reason", required=True, help="Why; the progress keeps it.")
def skip_range(file: str, partition: int, first: int, last: int, reason: str) -> None:
    """Leave out transactions at which a partition waits.

    They are those of PARTITION from FIRST to LAST, and are never delivered. FIRST is the
    transaction at which the partition waits; LAST is in the log. A bridge to a webhook must not
    run; one to Kafka may.
    """
    from waltz.bridge.bridge_progress import REASON_CHARACTERS_MAX

    if len(reason) > REASON_CHARACTERS_MAX:
        raise ConfigurationError(f"a reason has at most {REASON_CHARACTERS_MAX} characters")
    settings = _read_any(file)
    if settings.get(KAFKA_SERVERS) is None:
        _skip(settings, partition, first, last, reason)
    else:
        from waltz.cli.bridge_kafka import skip_in_kafka

        skip_in_kafka(settings, partition, first, last, reason)
    click.echo(f"partition {partition} resumes at transaction {last + 1}")


def _skip(settings: Settings, partition: int, first: int, last: int, reason: str) -> None:
    from waltz.bridge.bridge_progress import REMEDY, Skip
    from waltz.system.real_host import real_host
    from waltz.types import TlsSettings

    progress_at = progress_file(settings)
    unlock = _lock_to_skip(progress_at)
    try:
        with _told(progress_at):
            progress = progress_at.load()
        if progress is None:
            raise ConfigurationError(f"there is no progress in {progress_at.path}: nothing waits")

        async def ask() -> tuple[Histories, int, int]:
            async with bridge_reader(settings) as reader:
                progress.check_cluster(reader.cluster_key, progress_at.path)
                mark = await reader.high_water_mark(partition)
                clock = real_host(None, TlsSettings()).clock
                return reader.histories, mark, clock.wall_milliseconds()

        histories, mark, now = run_loop(ask())
        skip = Skip(partition, first, last, reason, now)
        skipped = progress.skipping(skip, histories.current)
        check_skip(histories, partition, progress.partitions[partition], last, mark, REMEDY)
        with _told(progress_at):
            progress_at.save(skipped)
    finally:
        unlock()


def _lock_to_skip(file: ProgressFile) -> Any:
    try:
        return file.lock()
    except DirectoryInUseError as error:
        raise DirectoryInUseError(
            f"a bridge runs with {file.path}. Stop it, skip, and start it again"
        ) from error


def check_skip(
    histories: Histories,
    partition: int,
    place: PartitionProgress,
    last: int,
    mark: int,
    remedy: str,
) -> None:
    """Raises HistoryChangedError; ConfigurationError: the log does not have all of the range."""
    from waltz.bridge.bridge_progress import check_place
    from waltz.types import PartitionId

    check_place(histories, PartitionId(partition), place, mark, remedy)
    if last > mark:
        raise ConfigurationError(
            f"the log of partition {partition} ends with transaction {mark}: {last} is not there"
            " yet, and what is to come is not skipped unseen"
        )
