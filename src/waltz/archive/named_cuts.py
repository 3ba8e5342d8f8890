"""Cuts by name in an archive: each is recorded once everything up to it is archived.

Owns what an archive must have before it may name a cut. How a cut is taken, and why it is closed,
is not known here: marks are given.
"""

from __future__ import annotations

from collections.abc import Mapping

from waltz.archive.archive import read_contents
from waltz.archive.archive_target import Target
from waltz.archive.commits import commit
from waltz.archive.manifest import CUT_NAME_CHARACTERS_MAX, Contents, Cut, Manifest, is_cut_name
from waltz.errors import ConfigurationError, NotFoundError, VersionConflictError
from waltz.types import PartitionId, TransactionId


def check_name(contents: Contents, name: str) -> None:
    """Raises ConfigurationError: it is not the name of a cut, or there is such a cut already."""
    if not is_cut_name(name):
        raise ConfigurationError(
            f"{name!a:.200} cannot be the name of a cut; expected 1 to {CUT_NAME_CHARACTERS_MAX}"
            " letters and digits of ASCII and . _ -, a letter or digit first"
        )
    if name in contents.cuts:
        raise ConfigurationError(
            f"the archive has a cut {name!r} already, and a cut is never replaced; take another"
            " name"
        )


def unarchived(
    contents: Contents, marks: Mapping[PartitionId, TransactionId]
) -> Mapping[PartitionId, int]:
    """Return the number of transactions up to `marks` that are not archived, of each partition that
    lacks some."""
    lacking = {each: mark + 1 - contents.end(each) for each, mark in sorted(marks.items())}
    return {each: count for each, count in lacking.items() if count > 0}


def record_cut(target: Target, known: Contents, cut: Cut, *, now: int, writer: str) -> Contents:
    """Add a cut to the archive, also if others commit meanwhile; return the contents after it.

    `known` is what is known of the archive, `now` in milliseconds since 1970, and `writer` a random
    text of this call. Raises ConfigurationError as `check_name`; NotFoundError: not everything up
    to the cut is archived; ArchiveDamagedError, ArchiveUnreachableError: the next opening tells
    whether the cut is there.
    """
    change = Manifest(0, None, now, writer, cuts=(cut,))
    while True:
        known = read_contents(target, known)
        check_name(known, cut.name)
        if lacking := unarchived(known, cut.marks):
            raise NotFoundError(
                f"{target.url} lacks {sum(lacking.values())} transactions of cut {cut.name!r}, of"
                f" partitions {', '.join(map(str, lacking))}"
            )
        try:
            return commit(target, known, change)
        except VersionConflictError:
            continue  # the archiver was first: every conflict means that one has committed
