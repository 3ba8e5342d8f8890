"""Writing into an archive: objects first, then the manifest that names them.

Owns the steps and what a lost race means. Always: a manifest is written once, under a number that
one of several writers gets, after every object that it names is durable; so there is one history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from waltz.archive.archive import HEAD, HINT, Archive, encode_hint, read_archive
from waltz.archive.archive_target import Target
from waltz.archive.log_object import LogObject
from waltz.archive.manifest import (
    FULL_EVERY,
    MANIFEST_BYTES_MAX,
    MILLISECONDS_PER_DAY,
    ArchivedFile,
    Contents,
    Manifest,
    digest_of,
    encode_head,
    encode_manifest,
    everything,
    following,
    manifest_path,
    object_path,
)
from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    NotFoundError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ORPHAN_MILLISECONDS_MIN: Final = MILLISECONDS_PER_DAY
"""Age from which an object that no manifest names belongs to no running writer any more: none
commits an object that is older than half of this."""

COMMIT_MILLISECONDS_MAX: Final = ORPHAN_MILLISECONDS_MIN // 2
"""The age up to which a written object may be named by a manifest."""


def create_archive(target: Target, cluster_key: UUID) -> Archive:
    """Make an archive of the cluster's log, or open the one that is there.

    Raises ConfigurationError: it is another cluster's; ArchiveDamagedError,
    ArchiveUnreachableError.
    """
    if not target.exists(HEAD):
        target.put_if_absent(HEAD, encode_head(cluster_key))
    archive = read_archive(target)
    if archive.cluster_key != cluster_key:
        raise ConfigurationError(
            f"{target.url} has the log of cluster {archive.cluster_key}, not of cluster"
            f" {cluster_key}; give that cluster's address, or another target"
        )
    return archive


def write_object(target: Target, made: LogObject, unique: str, level: int = 0) -> ArchivedFile:
    """Keep an object and return what a manifest says of it; no manifest names it yet.

    `unique` are 16 hexadecimal digits that nobody else uses. Raises ArchiveUnreachableError.
    """
    head = made.head
    path = object_path(head.partition_id, head.first, head.end, unique)
    # An attempt before, which seemed to fail, may have succeeded.
    is_new = target.put_if_absent(path, made.data)
    if not is_new and target.get(path, len(made.data)) != made.data:
        raise ArchiveUnreachableError(f"{target.url}/{path} is there and has other bytes")
    return ArchivedFile(
        path,
        head.partition_id,
        head.first,
        head.end,
        len(made.data),
        made.raw_count,
        made.footer_offset,
        made.digest.hex(),
        made.footer_digest.hex(),
        made.raw_digest.hex(),
        level,
    )


def commit(target: Target, before: Contents, change: Manifest) -> Contents:
    """Write the manifest that follows on `before`, and return the contents after it.

    `change` tells what it adds and removes; number, predecessor and whether it tells everything are
    set here. Raises VersionConflictError: another writer was first, nothing has changed;
    CorruptionError: the change does not fit; ArchiveUnreachableError: the outcome is unknown, and
    the next opening tells.
    """
    number = before.number + 1
    change = replace(change, number=number, previous=before.digest)
    if number % FULL_EVERY == 0:
        change = everything(before, change)
    data = encode_manifest(before.cluster_key, change)
    after = following(before, change, digest_of(data))
    if not target.put_if_absent(manifest_path(number), data) and not _is_ours(target, number, data):
        raise VersionConflictError(
            f"another archiver has written {manifest_path(number)} of {target.url} first"
        )
    try:
        target.put(HINT, encode_hint(number, digest_of(data)))
    except ArchiveUnreachableError:
        pass  # the manifest counts; without the hint the next opening takes longer
    return after


def _is_ours(target: Target, number: int, data: bytes) -> bool:
    """Whether the manifest that is there is this one: a request that was repeated after its answer
    was lost finds its own object. No two writers make equal manifests."""
    try:
        return target.get(manifest_path(number), MANIFEST_BYTES_MAX) == data
    except NotFoundError:
        return False


def orphans(target: Target, contents: Contents, now: int) -> Iterator[str]:
    """Yield the objects that no manifest names and nobody will name: left by killed writers and
    lost races, or replaced more than a day ago by larger ones.

    `contents` must have been read after the objects were older than a day, so: now.
    """
    named = {each.path for files in contents.files.values() for each in files}
    for prefix in ("log", "staging"):
        for each in target.list(prefix):
            since = contents.removed.get(each.path, each.changed_at)
            if each.path not in named and since < now - ORPHAN_MILLISECONDS_MIN:
                yield each.path
