"""The archive and the log that a file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.cli.archive_place import read_file, target_of
from waltz.errors import ConfigurationError


def test_a_file_names_the_target_and_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "archive.yml"
    path.write_text(
        f"archive:\n  target: file://{tmp_path}/a\n  everyy: 1\ncoordinator.address: 127.0.0.1:1\n"
    )
    settings = read_file(str(path))
    assert "did you mean archive.every" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="is it mounted"):
        target_of(settings)
    assert target_of(settings, create=True).url == f"file://{tmp_path}/a"
