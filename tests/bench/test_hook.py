"""What processes do besides, because their environment says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltz.bench.hook import variable, write_hook


def test_every_module_is_installed_at_the_start_of_a_process_and_told_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("first", "second"):
        text = f"import os\ndef install():\n    print(os.environ['{variable(name)}'])\n"
        (modules / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    environment = write_hook(tmp_path / "hook", {"first": "1", "second": "2"})
    done = subprocess.run(
        [sys.executable, "-c", ""], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "2"]
    assert environment["PATH"] == os.environ["PATH"]


def test_the_variable_of_a_module_has_its_name() -> None:
    assert variable("waltz.bench.slow_disk") == "WALTZ_BENCH_SLOW_DISK"
