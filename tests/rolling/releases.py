"""The release before this one, built from its commit and installed next to this one.

No package index is asked: the wheel is made from `git archive` with the build tools that are
installed, and the environment that it is installed into borrows the packages of this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from io import BytesIO
from pathlib import Path
from typing import Final

from tests.clusters import ROOT

PREVIOUS: Final = "785ccc7fa6d0b64daa77b11c713f07b1de7aab07"
"""The commit that plays the release before 1.0.0, which is the first: of 2026-11-25, before
policies, tokens, and the answers of a coordinator that was set back. Once there is a version after
1.0.0 this is the tag of 1.0.0."""

SECONDS_MAX: Final = 300

SAYS_WHERE: Final = "import waltz; print(waltz.__file__)"


class NoHistoryError(Exception):
    """The repository does not have the commit of the release before this one."""


def source_of(commit: str, repository: Path, directory: Path) -> None:
    """Write the tree of a commit into `directory`. Raises NoHistoryError."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit],
        cwd=repository,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise NoHistoryError(
            f"{repository} does not have commit {commit}, from which the release before this one"
            f" is built ({said}). Fetch the history, as by git fetch --unshallow."
        )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tree:
        tree.extractall(directory, filter="data")


def build_wheel(tree: Path) -> Path:
    """Return the wheel of a tree."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    subprocess.run(
        [*command, str(tree / "dist"), str(tree)],
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Return the Python of a new environment that has the wheel; other packages it takes from the
    environment of this process, which come behind its own."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    own = next((directory / "lib").glob("python3*")) / "site-packages"
    # A path in such a file is searched for packages; files like it in there are not read, and so
    # the checkout of this release, which one of them names, is not found.
    (own / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--no-deps", "--no-index", "--ignore-installed", str(wheel)),
        ],
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    found = Path(
        subprocess.run(
            [str(python), "-c", SAYS_WHERE],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        ).stdout.strip()
    )
    assert found.is_relative_to(own), f"another release is imported: {found}"
    return python


def previous_release(directory: Path) -> Path:
    """Build and install the release before this one; return its Python. Raises NoHistoryError."""
    tree = directory / "tree"
    tree.mkdir()
    source_of(PREVIOUS, ROOT, tree)
    return install(build_wheel(tree), directory / "environment")
