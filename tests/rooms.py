"""The tests that concern a change, as far as the time goes: make quick

Owns which tests a changed file concerns, most relevant first:

- a changed test file: itself;
- a changed module: its own test file, then those that import it, then the same for the modules
  that import it, and so on;
- a page or another file: the tests that name it.

Tests are taken in this order while their recorded durations (`shares.py`) fit; what is left out is
printed.

    python -m tests.rooms                     # changed since the merge base with main
    python -m tests.rooms --base HEAD~3 --seconds 20
    python -m tests.rooms --list              # what would run, and what would not
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from tests.shares import Durations, file_of, read_durations

ROOT: Final = Path(__file__).parent.parent

SECONDS: Final = 30.0
"""For the tests; `make quick` takes a minute with style, types and the start of two processes."""

PROCESSES: Final = 2
WORTH_PROCESSES_SECONDS: Final = 5.0
"""Fewer seconds of tests take less time in one process than two processes take to start."""

UNRECORDED_SECONDS: Final = 1.0
"""A file of tests without recorded durations is taken to need this."""

COLLECTED_SECONDS: Final = 0.1
"""Importing a file of tests and what it needs."""

SPARK_SECONDS: Final = 10.0
"""The start of a Spark session, once per process; the recorded durations have it in one test."""

LAWS: Final = ("tests/test_tidy.py", "tests/test_rows.py", "tests/test_api.py")
"""These concern every change."""

NAMED_MAX: Final = 4
"""Files named per folder of what is not run; of more, how many there are."""


# Which tests a change concerns


def module_of(path: str) -> str:
    """Return the dotted name that `path` is imported by."""
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: str, text: str) -> set[str]:
    """Return every dotted name that may be a module which the file imports."""
    module = module_of(path)
    package = (
        module if path.endswith(("__init__.py", "__init__.pyi")) else module.rpartition(".")[0]
    )
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            source = ".".join(filter(None, (start if node.level else "", node.module)))
            names |= {source} | {f"{source}.{each.name}" for each in node.names}
    return names


def importers(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return by file the files that import it; `__init__.pyi` speaks for its `__init__.py`.

    A test file imports the `conftest.py` of its folder and of those above it, too.
    """
    files = {module_of(path): path for path in sorted(sources) if path.endswith(".py")}
    found: dict[str, set[str]] = {}
    for path, text in sources.items():
        names = imported(path, text)
        if is_test(path):
            names |= {module_of(f"{folder}/conftest.py") for folder in PurePosixPath(path).parents}
        for name in names:
            if name in files:
                found.setdefault(files[name], set()).add(path.removesuffix("i"))
    return found


def is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")


def own_tests(path: str) -> set[str]:
    """Return the names that the test file of a module may have, as `test_tidy.py` wants them."""
    parts = PurePosixPath(path).parts
    if parts[:2] == ("src", "waltz"):
        room, inner = (
            ("tests", *parts[2:3]) if len(parts) > 3 else ("tests",),
            parts[3:] or parts[2:],
        )
    elif parts[0] in {"proofs", "bench", "demo", "examples"}:
        room, inner = ("tests", parts[0]), parts[1:]
    else:
        return set()
    folder = "/".join(room)
    return {f"{folder}/test_{'_'.join(inner)}", f"{folder}/test_{inner[-1]}"}


def topics(test: str, sources: Iterable[str]) -> set[str]:
    """Return the files next to `test` that begin with its name: other topics of the same module, or
    the tests of another module."""
    return {path for path in sources if path.startswith(f"{test.removesuffix('.py')}_")}


def relevance(changed: Iterable[str], sources: Mapping[str, str]) -> dict[str, int]:
    """Return the test files that the changed files concern; the smaller the number, the more.

    -1: the laws. 0: changed itself, or the test file of a changed module. 1: imports a changed
    module. 2: the test file of a module that imports a changed one, and so on.
    """
    known = importers(sources)
    owned = {test for path in sources for test in own_tests(path)}
    ranks: dict[str, int] = {}

    def concern(path: str, rank: int) -> None:
        if path in sources and is_test(path):
            ranks[path] = min(rank, ranks.get(path, rank))

    for path in LAWS:
        concern(path, -1)
    reached = {path for path in changed if path in sources}
    reached |= {reader for path in set(changed) - reached for reader in readers(path, sources)}
    seen: set[str] = set()
    rank = 0
    while reached:
        seen |= reached
        following = set()
        for path in reached:
            concern(path, rank)
            for test in own_tests(path):
                concern(test, rank)
                for topic in topics(test, sources) - owned:
                    concern(topic, rank)
            following |= known.get(path, set())
        for path in following:
            concern(path, rank + 1)
        reached = following - seen
        rank += 2
    return ranks


def readers(path: str, sources: Mapping[str, str]) -> set[str]:
    """Return the files of tests that name a file that is no module; if none does, those that name
    its folder, and the tests that are in its folder."""
    named = PurePosixPath(path)
    tests = {each: text for each, text in sources.items() if each.startswith("tests/")}
    found = {each for each, text in tests.items() if named.name in text}
    if found or len(named.parts) == 1:
        return found
    folder = f'"{named.parent.name}"'
    return {
        each
        for each, text in tests.items()
        if folder in text or (is_test(each) and PurePosixPath(each).parent == named.parent)
    }


# What of it fits


@dataclass(frozen=True, slots=True)
class Choice:
    """Files to run without their `left_out` tests, and files that are not run, with seconds."""

    files: list[str] = field(default_factory=list)
    left_out: dict[str, float] = field(default_factory=dict)
    not_run: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def choose(
    ranks: Mapping[str, int],
    durations: Durations,
    starts_spark: frozenset[str],
    seconds: float,
) -> Choice:
    """Return what fits into `seconds` of tests: the most relevant files, and of equal ones those
    that take least; of a file as many tests as fit, the quickest first."""
    singles: dict[str, dict[str, float]] = {}
    for test, value in durations.single.items():
        singles.setdefault(file_of(test), {})[test] = value

    def others(file: str) -> float:
        return COLLECTED_SECONDS + durations.others.get(file, UNRECORDED_SECONDS)

    def total(file: str) -> float:
        return others(file) + sum(singles.get(file, {}).values())

    choice, spent, spark = Choice(), 0.0, False
    for file in sorted(ranks, key=lambda each: (ranks[each], total(each), each)):
        start = SPARK_SECONDS * PROCESSES if file in starts_spark and not spark else 0.0
        tests = singles.get(file, {})
        if spent + start + others(file) > seconds:
            choice.not_run[file] = total(file)
            continue
        spent += start + others(file)
        spark = spark or start > 0
        choice.files.append(file)
        for test in sorted(tests, key=lambda each: (tests[each], each)):
            if spent + tests[test] > seconds:
                choice.left_out[test] = tests[test]
            else:
                spent += tests[test]
    return Choice(choice.files, choice.left_out, choice.not_run, spent)


def told(choice: Choice, long: Mapping[str, float]) -> list[str]:
    """Return the lines that say what is not run."""
    lines = [f"  {test} ({seconds:.1f} s)" for test, seconds in choice.left_out.items()]
    folders: dict[str, list[str]] = {}
    for file in choice.not_run:
        folders.setdefault(str(PurePosixPath(file).parent), []).append(file)
    for folder, files in sorted(folders.items()):
        names = ", ".join(PurePosixPath(each).name for each in files[:NAMED_MAX])
        more = f" and {len(files) - NAMED_MAX} more" if len(files) > NAMED_MAX else ""
        seconds = sum(choice.not_run[each] for each in files)
        lines.append(f"  {folder}: {names}{more} ({seconds:.0f} s)")
    lines = ["not run, make test runs them:", *lines] if lines else []
    concerned = {*choice.files, *choice.not_run}
    if left := [seconds for test, seconds in long.items() if file_of(test) in concerned]:
        lines.append(
            f"not run, make test-all runs them: {len(left)} long tests of these files"
            f" ({sum(left):.0f} s)"
        )
    return lines


# The repository


def git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def default_base() -> str:
    """Return the merge base with main, or HEAD where no branch has that name."""
    names = git(
        "for-each-ref", "--format=%(refname)", "refs/heads/main", "refs/remotes/origin/main"
    )
    return git("merge-base", names[0], "HEAD")[0] if names else "HEAD"


def changed_since(base: str) -> list[str]:
    """Return the paths that differ from `base`, committed or not, and new ones."""
    return [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]


def read_sources() -> dict[str, str]:
    """Return the texts of the Python files of the checkout by path."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.pyi")
    return {path: (ROOT / path).read_text() for path in paths if (ROOT / path).is_file()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the tests that concern a change.")
    parser.add_argument("--base", help="a commit; default: the merge base with main")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the tests")
    parser.add_argument("--list", action="store_true", help="run nothing")
    chosen = parser.parse_args(arguments)
    base = chosen.base or default_base()
    changed = changed_since(base)
    sources, durations = read_sources(), read_durations()
    starts_spark = frozenset(path for path, text in sources.items() if "pytest.mark.spark" in text)
    ranks = relevance(changed, sources)
    choice = choose(ranks, durations, starts_spark, chosen.seconds * PROCESSES)
    for line in told(choice, durations.long):
        print(line)
    print(
        f"{len(changed)} files changed since {base[:12]} concern {len(ranks)} files of tests;"
        f" these are run: {len(choice.files)} (about {choice.seconds / PROCESSES:.0f} s)",
        flush=True,
    )
    if chosen.list:
        print("\n".join(choice.files))
        return 0
    command = [sys.executable, "-m", "pytest", "-m", "not long", *choice.files]
    command += [word for test in choice.left_out for word in ("--deselect", test)]
    if choice.seconds > WORTH_PROCESSES_SECONDS:
        command += ["-n", str(PROCESSES), "--dist", "worksteal"]
    return subprocess.call(command, cwd=ROOT)


if __name__ == "__main__":
    raise SystemExit(main())
