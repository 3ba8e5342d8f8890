"""The status of pipelines, each asked in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from waltz.console.pipelines_shell import ask_pipelines, told_pipeline


@pytest.mark.processes
def test_a_pipeline_whose_status_fails_is_unknown_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "archive.yaml"
    path.write_text("pipeline: nothing\n")
    (told,) = asyncio.run(ask_pipelines([path]))
    assert told.problem is not None
    assert told.file == str(path)


def test_a_status_is_read_with_care() -> None:
    good = b'{"kind": "archive", "target": "/t", "partitions": [{"partition": 0, "taken_in": 3, "log": 5}]}'  # noqa: E501
    told = told_pipeline("f", good)
    assert (told.kind, told.target, told.partitions) == ("archive", "/t", ((0, 3, 5),))
    for bad in (b"", b"[]", b"{}", b'{"kind": 1, "partitions": 3}', b"[" * 100_000):
        assert told_pipeline("f", bad).problem == "its status cannot be read"
