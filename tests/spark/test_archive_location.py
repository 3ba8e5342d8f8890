"""Places of archives, as definitions and options name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.archive_location import DeltaLocation, absolute, parse_location

HERE = Path("/srv")


def test_a_place_says_its_format_and_is_read_back_from_its_text() -> None:
    assert parse_location("archive", HERE) == HERE / "archive"
    for text, root in (
        ("delta:archive", "/srv/archive"),
        ("delta:/var/archive", "/var/archive"),
        ("delta:s3://bucket/a/b/", "s3://bucket/a/b"),
    ):
        found = parse_location(text, HERE)
        assert found == DeltaLocation(root)
        assert parse_location(str(found), Path("/elsewhere")) == found
        assert absolute(found) == found
    assert DeltaLocation("s3://bucket/a").directory is None
    assert absolute(DeltaLocation("a")) == DeltaLocation(str(Path.cwd() / "a"))


@pytest.mark.parametrize(
    "text", ["delta:", "delta:s3://bucket", "delta:s3a://b/t", "delta:gs://b/t"]
)
def test_a_url_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a path, delta:PATH or delta:s3://"):
        parse_location(text, HERE)
