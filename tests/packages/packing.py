"""Builds wheel and sdist from copies of the tree, and installs them where no checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from supply.pins import pinned_needs
from tests.clusters import ROOT

COMMIT_TIME: Final = "1700000000"
"""The time in the archives, as `make dist` takes it from the commit."""

SECONDS_MAX: Final = 600


def files_of_tree() -> list[str]:
    """Return the paths of the files that a commit would have."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()})


def copy_tree(directory: Path) -> None:
    """Copy the tree as a clone has it: all times are those of the copy."""
    for path in files_of_tree():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, directory / path)
        shutil.copymode(ROOT / path, directory / path)


def pack(tree: Path, **environment: str) -> dict[str, bytes]:
    """Build wheel and sdist of a tree and return their bytes by file name."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist")],
        cwd=tree,
        env=os.environ | {"SOURCE_DATE_EPOCH": COMMIT_TIME} | environment,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    return {path.name: path.read_bytes() for path in sorted((tree / "dist").iterdir())}


def install(scripts: Path, wheel: Path, *extras: str) -> None:
    """Install a wheel of ours, and the pinned packages that it needs, into the environment whose
    programs are in the folder `scripts`."""
    pins = scripts / "pins.txt"
    pins.write_text("\n".join(map(str, pinned_needs(extras))))
    for wanted in (["--require-hashes", "--requirement", str(pins)], ["--no-index", str(wheel)]):
        command = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*command, *wanted],
            cwd=scripts,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def installed_bytes(distribution: Distribution) -> int:
    """Return what the files of an installed package take, compiled ones included."""
    places = [Path(str(distribution.locate_file(each))) for each in distribution.files or []]
    return sum(place.stat().st_size for place in places if place.is_file())
