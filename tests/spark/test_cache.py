"""Directories made once: whole or not at all, whoever is faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.cache import cache_directory, make_once


def test_a_directory_is_filled_once(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "file").write_text("first")

    def fill_again(directory: Path) -> None:
        raise AssertionError(f"{directory} was there")

    assert make_once(tmp_path / "it", fill) == tmp_path / "it"
    assert make_once(tmp_path / "it", fill_again) == tmp_path / "it"
    assert (tmp_path / "it" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_of_two_makers_the_first_wins(tmp_path: Path) -> None:
    def slower(directory: Path) -> None:
        (directory / "file").write_text("second")
        make_once(tmp_path / "it", lambda other: (other / "file").touch())

    assert make_once(tmp_path / "it", slower) == tmp_path / "it"
    assert (tmp_path / "it" / "file").read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "file").touch()
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space left"):
        make_once(tmp_path / "it", fill)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_goes_with_the_environment(tmp_path: Path) -> None:
    assert cache_directory(tmp_path, tmp_path / "unused") == tmp_path / "var" / "cache" / "waltz"
    assert not (tmp_path / "unused").exists()


def test_without_a_writable_environment_the_cache_is_private_to_the_user(tmp_path: Path) -> None:
    directory = cache_directory(tmp_path / "missing", tmp_path)
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o777 == 0o700
    assert cache_directory(tmp_path / "missing", tmp_path) == directory


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    directory = cache_directory(tmp_path / "missing", tmp_path)
    directory.chmod(0o777)
    with pytest.raises(ConfigurationError, match="that only user"):
        cache_directory(tmp_path / "missing", tmp_path)
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="that only user"):
        cache_directory(tmp_path / "missing", tmp_path)
