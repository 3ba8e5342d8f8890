"""The formats of archives, so that a test is run with each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from waltz.spark.any_archive import open_archive
from waltz.spark.archive_location import ArchiveLocation, DeltaLocation

Kind = Literal["parquet", "delta"]
KINDS: tuple[Kind, ...] = ("parquet", "delta")


def located(kind: Kind, directory: Path) -> ArchiveLocation:
    """Return the place of an archive of that format in a directory."""
    return directory if kind == "parquet" else DeltaLocation(str(directory))


def directory_of(location: ArchiveLocation) -> Path:
    directory = location if isinstance(location, Path) else location.directory
    assert directory is not None
    return directory


def stored(location: ArchiveLocation) -> Path:
    """Return the only file that an archive in a directory names."""
    (file,) = open_archive(location).contents().files
    return directory_of(location) / file.path


def renamed_digest(location: ArchiveLocation) -> None:
    """Change the digest that the only commit has of its only file."""
    (file,) = open_archive(location).contents().files
    digest = file.blocks[0].digest
    directory = directory_of(location)
    of = "manifests/*.json" if isinstance(location, Path) else "_delta_log/*1.json"
    (commit,) = directory.glob(of)
    commit.write_text(commit.read_text().replace(digest, digest[::-1]))
    if not isinstance(location, Path):
        path = directory / file.path
        path.rename(directory / file.path.replace(digest, digest[::-1]))
