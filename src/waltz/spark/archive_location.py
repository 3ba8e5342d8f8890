"""The place of an archive, and so its format, as a definition or an option names it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from waltz.errors import ConfigurationError

DELTA: Final = "delta:"
"""The prefix of a place whose archive is a Delta table."""

OBJECT_STORE_SCHEME: Final = "s3://"
OBJECT_STORE_URL: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[^/?#\s]+)*/([^/?#\s]+)/?")
"""The URL of tables in an object store, the last part of which is a name."""


@dataclass(frozen=True, slots=True)
class DeltaLocation:
    """The place of an archive that is a Delta table: a directory's path, or a bucket's URL."""

    root: str

    def __str__(self) -> str:
        return f"{DELTA}{self.root}"

    @property
    def directory(self) -> Path | None:
        """The directory; None: the archive is in a bucket."""
        return None if self.root.startswith(OBJECT_STORE_SCHEME) else Path(self.root)


ArchiveLocation: TypeAlias = Path | DeltaLocation
"""A path has an archive of Parquet files and manifests."""


def parse_location(text: str, directory: Path) -> ArchiveLocation:
    """Return the place that `text` names; a path is relative to `directory`.

    Raises ConfigurationError: a URL of something else than a bucket with a prefix.
    """
    if not text.startswith(DELTA):
        return directory / text
    place = text.removeprefix(DELTA)
    if OBJECT_STORE_URL.fullmatch(place):
        return DeltaLocation(place.rstrip("/"))
    if not place or place.startswith("//") or "://" in place:
        is_hadoop = place.startswith(("s3a:", "s3n:"))
        s3 = "; Waltz reads and writes the bucket itself, not Hadoop" if is_hadoop else ""
        raise ConfigurationError(
            f"{text!r} is no place of an archive; expected a path, delta:PATH or"
            f" delta:s3://BUCKET/PREFIX{s3}"
        )
    return DeltaLocation(str(directory / place))


def absolute(location: ArchiveLocation) -> ArchiveLocation:
    """Return the place as it is named on every machine that has it."""
    if isinstance(location, Path):
        return location.absolute()
    directory = location.directory
    return location if directory is None else DeltaLocation(str(directory.absolute()))
