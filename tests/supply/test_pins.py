"""The pins: they agree with pyproject.toml, and what differs from them is not installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.pins import BUILD_PINS, PINS, PROJECT, ROOT, Pin, needs, pinned_needs, pins_of

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = DECLARED["project"]["optional-dependencies"]


def declared() -> Iterator[Requirement]:
    """Yield what the package and its extras ask for."""
    for each in (DECLARED["project"]["dependencies"], *EXTRAS.values()):
        yield from map(Requirement, each)


@pytest.mark.parametrize("path", [PINS, BUILD_PINS], ids=lambda path: path.name)
def test_every_pin_has_one_version_and_its_hashes(path: Path) -> None:
    pins = pins_of(path.read_text())
    assert pins
    assert all(pin.hashes for pin in pins.values())


@pytest.mark.parametrize("path", [PINS, BUILD_PINS], ids=lambda path: path.name)
def test_a_file_of_pins_names_no_place_to_load_from(path: Path) -> None:
    assert [word for word in ("://", "index", "find-links") if word in path.read_text()] == []


def test_the_pins_agree_with_what_the_package_asks_for() -> None:
    pins = pins_of(PINS.read_text())
    for wanted in declared():
        name = canonicalize_name(wanted.name)
        assert name == PROJECT or wanted.specifier.contains(pins[name].version), str(wanted)


def test_the_pins_of_the_build_agree_with_what_a_build_asks_for() -> None:
    build, pins = pins_of(BUILD_PINS.read_text()), pins_of(PINS.read_text())
    wanted = [*DECLARED["build-system"]["requires"], *DECLARED["dependency-groups"]["build"]]
    for each in map(Requirement, wanted):
        assert each.specifier.contains(build[canonicalize_name(each.name)].version), str(each)
    shared = build.keys() & pins.keys()
    assert "hatchling" in shared
    assert {name: build[name] for name in shared} == {name: pins[name] for name in shared}


def test_all_that_any_extra_needs_is_pinned_and_installed_in_that_version() -> None:
    pins = pins_of(PINS.read_text())
    graph = needs(PROJECT, EXTRAS)
    assert graph.keys() - {PROJECT} <= pins.keys()
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format", "freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    installed = {canonicalize_name(a): b for a, _, b in (each.partition("==") for each in shown)}
    assert {name: pins[name].version for name in graph if name != PROJECT} == {
        name: installed[name] for name in graph if name != PROJECT
    }


def test_an_extra_needs_what_the_base_package_needs_and_more() -> None:
    base, archive = pinned_needs(), pinned_needs(["archive"])
    added = {pin.requirement.name for pin in archive} - {pin.requirement.name for pin in base}
    assert added >= {"obstore", "zstandard"}
    assert [pin for pin in archive if pin in base] == base


@pytest.mark.parametrize(
    "line",
    [
        "numpy>=2 --hash=sha256:" + "0" * 64,
        "numpy==2.* --hash=sha256:" + "0" * 64,
        "numpy==2.1,<3 --hash=sha256:" + "0" * 64,
        "numpy --hash=sha256:" + "0" * 64,
        "numpy==2.1",
        "numpy==2.1 --hash=sha256:12",
        "--index-url https://elsewhere.example",
    ],
)
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        pins_of(line + "\n")


def small_wheel(folder: Path, content: str) -> Path:
    """Make a wheel of one module, and return its path."""
    path = folder / "little-1.0-py3-none-any.whl"
    info = "little-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("little.py", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: little\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.long
def test_a_wheel_that_was_changed_is_not_installed(tmp_path: Path) -> None:
    """With the options of `make install`, from a folder in place of an index."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    offered = tmp_path / "offered"
    offered.mkdir()
    published = small_wheel(offered, "value = 1\n").read_bytes()
    pin = Pin(Requirement("little==1.0"), (hashlib.sha256(published).hexdigest(),))
    pins = tmp_path / "pins.txt"
    pins.write_text(str(pin))

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*options_of_install(python), str(pins), "--no-index", "--find-links", str(offered)],
            capture_output=True,
            text=True,
            check=False,
        )

    wheel = small_wheel(offered, "value = 2\n")
    refused = install()
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not list(tmp_path.glob("environment/lib/*/site-packages/little*"))
    wheel.write_bytes(published)
    assert install().returncode == 0
    assert list(tmp_path.glob("environment/lib/*/site-packages/little.py"))


def options_of_install(python: Path) -> list[str]:
    """Return the command that `make install` installs the pins with, up to the name of the file."""
    shown = subprocess.run(
        ["make", "--dry-run", "--always-make", "install"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = [
        each for each in shown.splitlines() if each.endswith("--requirement constraints.txt")
    ]
    _, *options = line.split()
    return [str(python), *options[:-1]]
