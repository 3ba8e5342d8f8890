"""Processes of live clusters: their complaints and last words, and the files of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.launch import NotStartedError, Process, run_directory


def test_what_a_process_logs_as_an_error_is_a_complaint(tmp_path: Path) -> None:
    process = Process("one", tmp_path / "log", "nothing")
    process.log.write_text(
        "2026 INFO partition_opened partition=0\n2026 ERROR partition_failed partition=0\n"
        "Traceback (most recent call last):\n2026 WARNING no_server error='an ERROR'\n"
    )
    assert list(process.complaints()) == [
        "one logged: 2026 ERROR partition_failed partition=0",
        "one logged: Traceback (most recent call last):",
    ]


def test_a_program_that_ends_before_it_is_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    process = Process("one", tmp_path / "log", "no.such.module")
    with pytest.raises(NotStartedError, match=r"one did not start: .*No module named"):
        asyncio.run(process.start())
    assert not process.runs
    assert process.status == 1


def test_the_files_of_a_run_are_kept_unless_it_went_well(tmp_path: Path) -> None:
    with run_directory(None, "a test", within=tmp_path) as good:
        good.is_kept = False
    with run_directory(None, "a test", within=tmp_path) as bad:
        pass
    with run_directory(tmp_path / "given", "a test") as given:
        given.is_kept = False
    assert [path.exists() for path in (good.path, bad.path, given.path)] == [False, True, True]
