"""Tools of others that judge what lies in deploy/, installed into build/tools if they are missing.

Those of Python have hashes in requirements.txt; Helm is built from its module of Go, whose content
Go compares with the checksums that all users of the module see.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.clusters import ROOT

FOLDER: Final = ROOT / "build" / "tools"
REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.22.0"
INSTALL_SECONDS_MAX: Final = 1800


def run(*command: str | Path, given: str | None = None) -> str:
    """Run a tool and return what it printed; it must end well."""
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def python_tools() -> Path:
    """Return the folder of the programs of requirements.txt."""
    scripts = FOLDER / "python" / "bin"
    made = scripts / REQUIREMENTS.name
    with _alone():
        if not made.exists() or made.read_text() != REQUIREMENTS.read_text():
            shutil.rmtree(scripts.parent, ignore_errors=True)
            run(sys.executable, "-m", "venv", scripts.parent)
            pip = ("-m", "pip", "install", "--quiet", "--no-deps")
            run(
                scripts / "python",
                *pip,
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--requirement",
                REQUIREMENTS,
            )
            shutil.copyfile(REQUIREMENTS, made)
    return scripts


def helm(*arguments: str | Path) -> str:
    """Run Helm and return what it printed; it must end well."""
    program = FOLDER / HELM.rpartition("@")[2] / "helm"
    with _alone():
        if not program.exists():
            go = shutil.which("go")
            assert go is not None, "these tests build Helm with Go: apt-get install golang-go"
            done = subprocess.run(
                [go, "install", HELM],
                env=os.environ | {"GOBIN": str(program.parent), "GOFLAGS": "-trimpath"},
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS_MAX,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    return run(program, *arguments)


class _alone:  # noqa: N801
    """One process installs while the others wait."""

    def __enter__(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._lock = (FOLDER / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._lock.close()
