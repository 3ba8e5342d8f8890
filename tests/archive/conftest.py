"""A bucket of an S3-compatible store, in a process's own memory, spoken to over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from waltz.archive.archive_target import Target, open_target


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of the store."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket_url(object_store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, reached with what the environment says."""
    import boto3

    name = f"bucket-{uuid4().hex[:12]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    boto3.client("s3", endpoint_url=object_store, region_name="us-east-1").create_bucket(
        Bucket=name
    )
    return f"s3://{name}/some/prefix"


@pytest.fixture
def bucket(bucket_url: str) -> Target:
    return open_target(bucket_url)
