"""Writing into an archive: one history, whatever races, and what is swept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from tests.archive.archives import KEY, NOW, OTHER_KEY, add, batch, directory_target
from waltz.archive.archive import HINT, encode_hint, read_archive, read_contents
from waltz.archive.archive_target import open_target
from waltz.archive.commits import (
    ORPHAN_MILLISECONDS_MIN,
    commit,
    create_archive,
    orphans,
    write_object,
)
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import FULL_EVERY, Contents, Manifest, digest_of, manifest_path
from waltz.errors import (
    ArchiveDamagedError,
    ArchiveUnreachableError,
    ConfigurationError,
    VersionConflictError,
)
from waltz.types import PartitionId, TransactionId


def test_another_clusters_archive_is_left_alone(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    create_archive(target, KEY)
    with pytest.raises(ConfigurationError, match="not of cluster"):
        create_archive(target, OTHER_KEY)


def test_of_two_commits_one_gets_the_number(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    before = create_archive(target, KEY).contents
    commit(target, before, Manifest(0, None, NOW, "one"))
    with pytest.raises(VersionConflictError, match="another archiver"):
        commit(target, before, Manifest(0, None, NOW, "two"))
    # The first writer's request, repeated because its answer was lost, is no conflict.
    assert commit(target, before, Manifest(0, None, NOW, "one")).number == 0


def test_an_archive_opens_the_same_with_any_hint(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    contents = create_archive(target, KEY).contents
    for number in range(FULL_EVERY + 7):
        contents = commit(target, contents, Manifest(0, None, NOW, f"writer-{number}"))
        if number % 20 == 3:
            assert read_archive(target).contents == contents
    hints = [
        encode_hint(number, digest_of(target.get(manifest_path(number), 1 << 20)))
        for number in (0, 3, FULL_EVERY, contents.number)
    ]
    for hint in (*hints, b"none", b"9" * 20_000, b"9" * 100):
        target.put(HINT, hint)
        assert read_archive(target).contents == contents
    target.delete(HINT)
    assert read_archive(target).contents == contents
    assert read_contents(target, contents) is contents


def test_a_lost_manifest_is_told(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    contents = create_archive(target, KEY).contents
    for number in range(5):
        contents = commit(target, contents, Manifest(0, None, NOW, f"writer-{number}"))
    kept = target.get(manifest_path(2), 10_000)
    target.delete(manifest_path(2))
    with pytest.raises(ArchiveDamagedError, match="a manifest is lost"):
        read_archive(target)
    target.put_if_absent(manifest_path(2), kept)
    target.delete(manifest_path(4))
    with pytest.raises(ArchiveDamagedError, match="was written and is lost"):
        read_archive(target)


def test_a_changed_last_manifest_is_told(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    contents = create_archive(target, KEY).contents
    commit(target, contents, Manifest(0, None, NOW, "one"))
    data = target.get(manifest_path(0), 10_000)
    target.put(manifest_path(0), data.replace(b'"one"', b'"two"'))
    with pytest.raises(ArchiveDamagedError, match="is not the one"):
        read_archive(target)


def test_an_object_is_written_once(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    objects = []
    for count in (3, 4):
        writer = ObjectWriter(KEY, PartitionId(0), TransactionId(0))
        writer.add(batch(0, count))
        objects.append(writer.finish())
    told = write_object(target, objects[0], "0" * 16)
    assert write_object(target, objects[0], "0" * 16) == told
    assert target.put_if_absent(told.path, b"other") is False
    assert target.get(told.path, 10_000) == objects[0].data


def test_what_nobody_names_is_swept_after_a_day(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)]})
    target.put_if_absent("log/0/left.wal", b"x")
    target.put_if_absent("staging/left", b"x")
    changed = max(each.changed_at for each in target.list("log"))
    soon, later = changed + 1, changed + ORPHAN_MILLISECONDS_MIN + 60_000
    assert list(orphans(target, archive.contents, soon)) == []
    assert sorted(orphans(target, archive.contents, later)) == ["log/0/left.wal", "staging/left"]
    # An object that was replaced is kept for a day from then on: somebody may be reading it.
    old = archive.partitions[PartitionId(0)].files[0].path
    bigger = add(target, {0: [(5, 9)]}, now=NOW + 5).contents
    removed = Contents(KEY, removed={old: later - 1000}, files={})
    assert old not in list(orphans(target, removed, later))
    assert old in list(orphans(target, removed, later + ORPHAN_MILLISECONDS_MIN))
    assert old not in list(orphans(target, bigger, later + ORPHAN_MILLISECONDS_MIN))


def race(url: str, writer: str, count: int) -> list[int]:
    """Commit `count` manifests against all others, and return their numbers."""
    target = open_target(url, create=True)
    contents = create_archive(target, KEY).contents
    won: list[int] = []
    while len(won) < count:
        try:
            contents = commit(target, contents, Manifest(0, None, NOW, f"{writer}-{len(won)}"))
            won.append(contents.number)
        except VersionConflictError:
            contents = read_contents(target, contents)
    return won


@pytest.mark.parametrize("count", [20, pytest.param(250, marks=pytest.mark.long)])
def test_threads_that_race_make_one_history(tmp_path: Path, count: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: race(f"file://{tmp_path}/a", each, count), "abcd"))
    assert sorted(chain.from_iterable(found)) == list(range(4 * count))
    assert read_archive(directory_target(tmp_path / "a")).contents.number == 4 * count - 1


def test_an_object_of_another_writer_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    writer = ObjectWriter(KEY, PartitionId(0), TransactionId(0))
    writer.add(batch(0, 3))
    made = writer.finish()
    told = write_object(target, made, "0" * 16)
    target.put(told.path, b"x" * len(made.data))
    with pytest.raises(ArchiveUnreachableError, match="has other bytes"):
        write_object(target, made, "0" * 16)
