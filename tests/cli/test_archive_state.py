"""`waltz archive status` of archives whose log cannot be asked: what is known is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archives import NOW, add, directory_target
from tests.clusters import run_tool
from waltz.archive.archive import read_archive
from waltz.archive.archive_target import DirectoryTarget
from waltz.archive.verification_record import VERIFIED
from waltz.cli.archive_state import _facts, _show, _shown
from waltz.errors import ConfigurationError
from waltz.types import PartitionId


def written(tmp_path: Path) -> Path:
    path = tmp_path / "archive.yml"
    path.write_text(f"archive.target: file://{tmp_path}/a\ncoordinator.address: 127.0.0.1:1\n")
    return path


def test_without_the_log_the_archive_is_told_and_the_rest_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(directory_target(tmp_path / "a"), {0: [(0, 5)], 1: [(0, 2)]})
    said = run_tool("archive", "status", written(tmp_path), "--json")
    assert said.code == 3
    (first, second) = said.json["partitions"]
    assert (first["archived"], first["log"], first["behind"]) == (4, None, None)
    assert (second["archived"], second["objects"]) == (1, 1)
    assert first["archived_until"] == "2026-09-21T14:13:20Z"
    assert "127.0.0.1:1" in said.json["unknown"]["log"]
    _show(said.json)
    shown = capsys.readouterr()
    assert "unknown" in shown.out
    assert "the log is unknown" in shown.err


def test_a_place_without_an_archive_is_told(tmp_path: Path) -> None:
    said = run_tool("archive", "status", written(tmp_path))
    assert (said.code, "is it mounted" in said.err) == (1, True)


def test_a_mark_that_is_not_known_is_no_lag_of_nothing(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    add(target, {0: [(0, 5)]})
    facts = _facts(read_archive(target), {PartitionId(1): 7}, {"0": "no server"})
    assert [(each["partition"], each["log"], each["behind"]) for each in facts["partitions"]] == [
        (0, None, None),
        (1, 7, 8),
    ]
    assert facts["last_commit_age_seconds"] >= 0
    assert NOW
    assert (_shown(None), _shown(0)) == ("unknown", "0")


def test_a_log_that_ends_before_the_archive_is_not_said_to_be_archived_to_its_end(
    tmp_path: Path,
) -> None:
    """A server that was replaced may tell too low a mark, or the log has lost data."""
    archive = add(directory_target(tmp_path / "a"), {0: [(0, 5)], 1: [(0, 2)]})
    reasons: dict[str, str] = {}
    facts = _facts(archive, {PartitionId(0): 2, PartitionId(1): 1}, reasons)
    assert [(each["log"], each["behind"]) for each in facts["partitions"]] == [(None, None), (1, 0)]
    assert "archive has transactions to 4, the log told 2 as its last" in reasons["0"]
    assert list(reasons) == ["0"], "which ends the command with 3"


@pytest.mark.long
def test_the_last_verification_is_told_with_its_age_and_never_if_there_was_none(
    tmp_path: Path,
) -> None:
    target = directory_target(tmp_path / "a")
    add(target, {0: [(0, 5)], 1: [(0, 2)]})
    file = written(tmp_path)
    said = run_tool("archive", "status", file)
    assert "verified: never" in said.out
    assert run_tool("archive", "status", file, "--json").json["last_verification"] is None

    assert run_tool("archive", "verify", file).code == 0
    found = run_tool("archive", "status", file, "--json").json["last_verification"]
    assert (found["right"], found["objects"], found["against"]) == (True, 2, None)
    assert 0 <= found["age_seconds"] < 3600
    said = run_tool("archive", "status", file)
    assert "s ago: right; 2 objects of 1 manifests" in said.out
    assert "in full" not in said.out, "it was the same run"

    (path,) = (tmp_path / "a").rglob("log/1/*.wal")
    path.write_bytes(b"x")
    assert run_tool("archive", "verify", file).code == 1
    said = run_tool("archive", "status", file)
    assert "1 wrong; 2 objects" in said.out

    target.put(VERIFIED, b"garbage")
    said = run_tool("archive", "status", file)
    assert said.code == 3
    assert "the last verification is unknown: " in said.err
    assert "verified: never" not in said.out


def test_a_record_that_cannot_be_written_does_not_change_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(directory_target(tmp_path / "a"), {0: [(0, 5)]})

    def refuse(self: object, path: str, data: bytes) -> None:
        raise ConfigurationError("it refuses to write")

    monkeypatch.setattr(DirectoryTarget, "put", refuse)
    said = run_tool("archive", "verify", written(tmp_path))
    assert said.code == 0
    assert "waltz archive status will not know of this run: it refuses to write" in said.err
