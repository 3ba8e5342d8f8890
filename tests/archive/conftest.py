"""A bucket of an S3-compatible store for the tests of this room."""

from __future__ import annotations

import pytest

from tests.buckets import bucket_url, object_store
from waltz.archive.archive_target import Target, open_target

__all__ = ["bucket_url", "object_store"]


@pytest.fixture
def bucket(bucket_url: str) -> Target:
    return open_target(bucket_url)
