"""The point of a restore, as the options of a command name it, and the plan that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from waltz.cli.storage_wishes import StoragePlaces, storages_of
from waltz.errors import ConfigurationError
from waltz.restore.archived_cluster import ArchivedCluster, archived_cluster
from waltz.restore.points import (
    AtCut,
    AtMarks,
    AtTime,
    Latest,
    Place,
    Point,
    archived_end,
    places,
)
from waltz.restore.restore_plan import RestorePlan, make_plan
from waltz.types import NOTHING, PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz.archive.archive import Archive

PARTITIONS_NAMED_MAX = 5
"""Partitions that an error names."""


@dataclass(frozen=True, slots=True)
class PointWish:
    """The point that was asked for, and the words for it."""

    point: Point
    said: str


def point_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `command` gets `wish`, a PointWish, and `allow_empty`."""

    @wraps(command)
    def with_point(
        *, latest: bool, cut: str | None, at: str | None, marks: str | None, **others: Any
    ) -> Any:
        given = [name for name, each in (("--cut", cut), ("--at", at), ("--marks", marks)) if each]
        if len(given) + latest > 1:
            raise click.UsageError("--latest, --cut, --at and --marks exclude each other")
        point: Point = Latest()
        said = "--latest"
        if cut is not None:
            point, said = AtCut(cut), f"--cut {cut}"
        elif at is not None:
            point, said = AtTime(parse_moment(at)), f"--at {at}"
        elif marks is not None:
            point, said = AtMarks(parse_marks(marks)), f"--marks {marks}"
        return command(wish=PointWish(point, said), **others)

    decorated: Callable[..., Any] = with_point
    for names, options in (
        (
            ("--allow-empty",),
            {
                "is_flag": True,
                "help": "Restore partitions of which nothing is archived, without records.",
            },
        ),
        (("--marks",), {"metavar": "0=100,1=250", "help": "The last transaction of each."}),
        (("--at",), {"metavar": "2026-11-23T10:00Z", "help": "What was durable by that time."}),
        (("--cut",), {"metavar": "NAME", "help": "A named cut of the archive."}),
        (("--latest",), {"is_flag": True, "help": "All that is archived; the default."}),
    ):
        decorated = click.option(*names, **options)(decorated)
    return decorated


def parse_moment(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises click.BadParameter: it is none, or does not
    say how far it is from UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; expected 2026-11-23T10:00Z") from None
    if found.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} does not say in which zone: end it with Z for UTC, or with +02:00, say"
        )
    return int(found.timestamp() * 1000)


def parse_marks(text: str) -> dict[PartitionId, TransactionId]:
    """Return the last transaction of each partition. Raises click.BadParameter."""
    found: dict[PartitionId, TransactionId] = {}
    for part in text.split(","):
        partition, _, last = map(str.strip, part.partition("="))
        digits = last.removeprefix("-")
        if not (partition.isascii() and partition.isdigit() and digits.isascii()) or (
            not digits.isdigit() or int(last) < NOTHING or PartitionId(int(partition)) in found
        ):
            raise click.BadParameter(
                f"{part!r} is no mark: expected PARTITION=TRANSACTION, each partition once, -1 for"
                " none of its transactions"
            )
        found[PartitionId(int(partition))] = TransactionId(int(last))
    return found


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was made from."""

    archive: Archive
    archived: ArchivedCluster
    places: dict[PartitionId, Place]
    plan: RestorePlan

    def byte_count(self, partition_id: PartitionId) -> int:
        """Return about how many bytes of records are restored: exact if the place ends with an
        object of the archive."""
        return restored_bytes(self.archive, partition_id, self.places[partition_id].last)

    @property
    def unarchived(self) -> list[PartitionId]:
        """The partitions of the cluster of which nothing is archived, and of which the archiver has
        not noted that they were empty."""
        return [
            p
            for p in self.plan.lasts
            if archived_end(self.archive, p) == 0 and not self.archive.time_marks(p)
        ]

    def check_complete(self, *, allow_empty: bool) -> None:
        """Raise ConfigurationError if a partition would be restored empty without leave, although
        nobody has noted that it was."""
        missing = self.unarchived
        if missing and not allow_empty:
            named = ", ".join(map(str, missing[:PARTITIONS_NAMED_MAX]))
            more = len(missing) - PARTITIONS_NAMED_MAX
            raise ConfigurationError(
                f"nothing is archived of partition {named}"
                f"{f' and {more} more' if more > 0 else ''}, and no archiver has noted that it was"
                " empty: it was left out, or is newer than the archive. With --allow-empty such"
                " partitions are restored without records"
            )


def restored_bytes(archive: Archive, partition_id: PartitionId, last: int) -> int:
    """Return about how many bytes of records a partition has up to `last`: exact if that ends an
    object of the archive."""
    found = archive.partitions.get(partition_id)
    total = 0
    for file in () if found is None else found.files:
        count = min(last + 1, file.end) - file.first
        if count > 0:
            total += file.raw_count * count // (file.end - file.first)
    return total


def plan_restore(
    url: str,
    wish: PointWish,
    *,
    same_key: bool,
    storages: Sequence[StoragePlaces],
    name: str | None,
    wall_milliseconds: int,
) -> Planned:
    """Open the archive and return the plan; without `storages` the storage nodes are those of the
    archived cluster. Raises as `open_archive`; ConfigurationError: the
    archive does not have what is asked for."""
    from waltz.archive.archive import open_archive  # only with its libraries

    archive = open_archive(url)
    archived = archived_cluster(archive)
    found = places(archive, wish.point, archived.partition_count)
    plan = make_plan(
        archived,
        found,
        archive=url,
        point=wish.said,
        same_key=same_key,
        storages=storages_of(storages, archived.partition_count) if storages else None,
        name=name,
        restore_id=uuid4(),
        new_key=uuid4(),
        wall_milliseconds=wall_milliseconds,
    )
    return Planned(archive, archived, found, plan)
