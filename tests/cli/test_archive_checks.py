"""`waltz archive verify` on archives alone; its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archives import add, directory_target
from tests.cli.test_archive_state import written
from tests.clusters import run_tool


def test_an_archive_is_verified_without_the_cluster(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5), (5, 9)]})
    said = run_tool("archive", "verify", written(tmp_path))
    assert said.code == 0
    assert "1 manifests and 2 objects, 9 transactions" in said.out
    target.delete(archive.contents.files[next(iter(archive.contents.files))][1].path)
    said = run_tool("archive", "verify", written(tmp_path))
    assert said.code == 1
    assert "wrong: partition 0, transaction 5: log/0/" in said.out
    assert "it is lost" in said.out


@pytest.mark.parametrize("share", ["0%", "101%", "1", "one", "-1%"])
def test_another_share_is_refused(tmp_path: Path, share: str) -> None:
    said = run_tool("archive", "verify", written(tmp_path), "--sample", share)
    assert said.code == 2


def test_a_sample_and_all_exclude_each_other(tmp_path: Path) -> None:
    said = run_tool("archive", "verify", written(tmp_path), "--sample", "1%", "--full")
    assert said.code == 2
    assert "exclude" in said.err


def test_a_sample_of_everything_is_everything(tmp_path: Path) -> None:
    add(directory_target(tmp_path / "a"), {0: [(0, 5), (5, 9)]})
    said = run_tool("archive", "verify", written(tmp_path), "--sample", "100%", "--json")
    assert (said.code, said.json["objects"], said.json["objects_left_out"]) == (0, 2, 0)
