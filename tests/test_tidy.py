"""The house rules as tests: who imports whom, where waiting is allowed, what is too long.

Each failure names the file, the line and the rule, and what to do instead.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "waltz"

WORDS = {
    "types", "errors", "limits", "machine", "host", "record", "figures", "peer_log", "log_fields",
    "checksums", "majority", "recognition", "arrays", "wall_time",
    "plain_yaml", "bearer_tokens", "envelope",
}  # fmt: skip
EVERYTHING = WORDS | {
    "machine_shell", "wire", "access", "audit", "cluster", "storage", "store", "server", "client",
    "connections", "operators", "reader", "system", "sim", "metrics",
    "spark", "cli", "console", "configuration", "testing", "bench", "archive", "attest", "restore",
    "outbox", "bridge",
}  # fmt: skip
CLIENTS = {"client", "connections", "operators", "reader"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "limits": set(),
    "machine": set(),
    "host": {"types"},
    "arrays": set(),
    "checksums": {"arrays"},
    "record": {"types", "errors", "limits", "checksums", "arrays"},
    "figures": set(),
    "log_fields": set(),
    "tracing": {"types", "errors", "envelope", "client.transaction"},
    "metrics": {"types", "errors", "figures", "client.client_metrics"},
    "majority": set(),
    "peer_log": {"limits"},
    "recognition": set(),
    "wall_time": {"errors"},
    "plain_yaml": set(),
    "bearer_tokens": {"errors", "plain_yaml"},
    "envelope": set(),
    "machine_shell": WORDS,
    "wire": {"types", "errors", "limits", "record", "recognition", "arrays"},
    "access": WORDS | {"wire", "audit"},
    "audit": WORDS,
    "cluster": WORDS | {"wire"},
    "storage": WORDS | {"wire", "access", "audit"},
    "store": WORDS | {"wire", "cluster"},
    "connections": WORDS | {"wire", "cluster"},
    "restore": WORDS | {"wire", "cluster", "storage", "archive"},
    "reader": WORDS | {"wire", "cluster", "connections"},
    "operators": WORDS | {"wire", "cluster", "connections", "reader"},
    "attest": {"types", "errors", "limits", "record"},
    "client": WORDS | {"wire", "cluster", "connections", "operators"},
    "server": WORDS | {"wire", "access", "audit", "cluster", "store"},
    "system": {
        "types",
        "errors",
        "limits",
        "host",
        "peer_log",
        "recognition",
        "bearer_tokens",
        "cluster.tree",
    },
    "configuration": {
        "types",
        "errors",
        "limits",
        "plain_yaml",
        "storage.directory",
        "access.principals",
    },
    "spark": {
        "plain_yaml",
        "envelope",
        "types",
        "errors",
        "",
        "reader",
        "configuration",
        "storage.inspection",
        "system.real_disk",
        "archive.archive_target",
        "figures",
        "metrics",
    },
    "bench": {
        "types",
        "errors",
        "limits",
        "",
        "spark.log_columns",
        "spark.schema",
        "system.real_disk",
        "store.store_partition_shell",
        "store.events",
    },
    "cli": EVERYTHING - {"sim", "testing", "console"} | {""},
    "console": WORDS
    | {"wire", "cluster", "connections", "operators", "reader", "system", "cli", "opening", ""}
    | {"spark.sink_progress"},
    "sim": EVERYTHING
    - {
        "system",
        "spark",
        "cli",
        "console",
        "configuration",
        "testing",
        "bench",
        "metrics",
        "outbox",
        "bridge",
    }
    | {""},
    "testing": WORDS | CLIENTS | {"wire", "cluster", "sim", "system", ""},
    "archive": WORDS | {"wire", "cluster", "reader", "operators", "system.real_disk"},
    "outbox": WORDS | {"client", ""},
    "bridge": WORDS | {"cluster", ""},
    "ext": WORDS | {"client", ""},
    "opening": WORDS | CLIENTS | {"system", "attest", "archive.archive_target"},
    "": {"opening"},
}
"""What each top-level part of `waltz` may import; the empty name is `waltz/__init__.py`."""

MAY_WAIT = {"system", "sim", "cli", "testing", "ext"}
"""Parts whose every file may use asyncio; elsewhere only `*_shell.py` and the faces for threads."""

FOR_THREADS = {
    "client/databases/database_marks_shell.py",
    "client/blocking_client.py",
    "reader/blocking_reader.py",
    "connections/loop_thread.py",
}
"""The faces for threads wait in threads of their own."""

OUTSIDE = {"socket", "os", "time", "datetime", "random", "secrets", "threading", "kazoo"}
MAY_TOUCH_OUTSIDE = {"system", "sim", "cli", "testing", "bench", "wall_time", "ext"}
"""`wall_time` has the calendar, and reads no clock."""

FOR_DJANGO = {
    PACKAGE / "ext" / "django" / folder
    for folder in ("management", "management/commands", "migrations")
}
"""Folders that Django asks for, with modules that it looks for there."""

OF_DJANGO = {"Meta", "Migration"}
"""Names of classes that Django looks for, in each model and in each migration."""

NAMED_BY_DJANGO = {PACKAGE / "ext" / "django" / "admin.py"}
"""Modules that Django looks for by their names."""

WAITING = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith

MODULE_LINES_MAX = 640
"""A longer file is looked at again: one room or two? No file is split to please this figure."""

TEST_FILE_LINES_MAX = 600
"""A longer file of tests has more than one topic."""

FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "common", "core", "helpers", "base", "impl"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    if len(relative.parts) > 1:
        return relative.parts[0]
    return "" if relative.stem == "__init__" else relative.stem


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(tree: ast.Module) -> list[tuple[str, int]]:
    """Return every imported module with its line; `from waltz import x` counts as `waltz.x`'s
    package."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "datetime" and [each.name for each in node.names] == ["timedelta"]:
                continue  # a length of time reads no clock
            found.append((node.module or "", node.lineno))
    return found


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def allowed(part: str, module: str) -> bool:
    inside = module.split(".")[1:]
    if not inside:
        return "" in LAYERS[part]
    if inside[0] == part or inside[0] in LAYERS[part]:
        return True
    return ".".join(inside[:2]) in LAYERS[part]


def is_shell(path: Path) -> bool:
    return path.name.endswith("_shell.py") or is_for_threads(path)


def is_for_threads(path: Path) -> bool:
    return path.relative_to(PACKAGE).as_posix() in FOR_THREADS


def test_each_part_imports_only_the_layers_below_it() -> None:
    wrong = []
    for path in modules():
        part = part_of(path)
        for module, line in imports(tree_of(path)):
            if module.split(".")[0] != "waltz":
                continue
            if module == "waltz.machine_shell" and (is_shell(path) or part in MAY_WAIT):
                continue
            if not allowed(part, module):
                wrong.append(f"{where(path, line)}: {part!r} may not import {module}")
    assert not wrong, "\n".join(wrong)


def test_only_shells_and_hosts_wait() -> None:
    """Machines decide, shells do: a decision that awaits cannot be simulated step by step."""
    wrong = []
    for path in modules():
        if is_shell(path) or part_of(path) in MAY_WAIT or path == PACKAGE / "host.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, WAITING) or (
                isinstance(node, ast.Import) and any(name.name == "asyncio" for name in node.names)
            ):
                wrong.append(f"{where(path, node.lineno)}: waiting belongs into a *_shell.py")
    assert not wrong, "\n".join(wrong)


def test_only_hosts_touch_the_operating_system() -> None:
    wrong = []
    for path in modules():
        part = part_of(path)
        if part in MAY_TOUCH_OUTSIDE or is_for_threads(path):
            continue
        for module, line in imports(tree_of(path)):
            if module.split(".")[0] in OUTSIDE and part != "spark":
                wrong.append(f"{where(path, line)}: {module} belongs behind a door of host.py")
            if module.split(".")[0] in {"pyspark", "pyarrow"} and part != "spark":
                wrong.append(f"{where(path, line)}: {module} belongs into waltz.spark")
    assert not wrong, "\n".join(wrong)


def test_no_file_and_no_function_is_too_long() -> None:
    wrong = []
    for path in modules():
        length = len(path.read_text().splitlines())
        if length > MODULE_LINES_MAX:
            wrong.append(f"{where(path, 1)}: {length} lines; is it one room or two?")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{where(path, node.lineno)}: {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_no_file_of_tests_is_too_long() -> None:
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        length = len(path.read_text().splitlines())
        if length > TEST_FILE_LINES_MAX:
            wrong.append(f"{where(path, 1)}: {length} lines; split the file by topic")
    assert not wrong, "\n".join(wrong)


def test_every_shared_bound_has_a_sentence_of_its_own() -> None:
    body = tree_of(PACKAGE / "limits.py").body
    wrong = [
        each.target.id
        for each, following in zip(body, [*body[1:], None], strict=True)
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]
    assert not wrong, f"one constant, one sentence: {wrong}"


def test_names_say_what_it_is() -> None:
    wrong = [str(path) for path in modules() if path.stem in FORBIDDEN_NAMES]
    assert not wrong, f"a file is named after what is in it: {wrong}"


def test_every_module_says_what_it_owns() -> None:
    wrong = [
        where(path, 1)
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(tree_of(path))
    ]
    assert not wrong, f"a docstring says what the module owns: {wrong}"


def importers_of(path: Path) -> list[Path]:
    """Return the modules of the package that import `path`."""
    module = ".".join(("waltz", *path.relative_to(PACKAGE).with_suffix("").parts))
    return [each for each in modules() if module in imported_by(each)]


@cache
def imported_by(path: Path) -> frozenset[str]:
    return frozenset(name for name, _ in imports(tree_of(path)))


def test_no_two_modules_have_the_same_name() -> None:
    """Editors show names of files: two tabs with one title are told apart by nobody."""
    places: dict[str, list[str]] = {}
    for path in [*modules(), *sorted((ROOT / "proofs").rglob("*.py"))]:
        if path.stem not in {"__init__", "__main__"} and path not in NAMED_BY_DJANGO:
            places.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    wrong = [" and ".join(each) for each in places.values() if len(each) > 1]
    assert not wrong, "\n".join(wrong)


def test_no_class_name_stands_twice_in_one_part() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not (
                node.name.startswith("_") or node.name in OF_DJANGO
            ):
                places.setdefault((part_of(path), node.name), []).append(where(path, node.lineno))
    wrong = [" and ".join(each) for each in places.values() if len(each) > 1]
    assert not wrong, "\n".join(wrong)


def test_no_folder_holds_a_single_module() -> None:
    folders = {path.parent for path in [*modules(), *sorted((ROOT / "proofs").rglob("*.py"))]}
    wrong = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if folder not in FOR_DJANGO
        and len([*folder.glob("*.py")]) + len([*folder.glob("*/__init__.py")]) <= 2
    ]
    assert not wrong, f"a folder is worth its name from two modules on: {wrong}"


def test_every_module_with_logic_has_a_test_of_its_own_name() -> None:
    """One test file per module, so that the module's branches are covered next to it. A shell that
    one module alone imports is tested with that module."""
    untested = {"limits", "machine", "host", "errors", "__init__", "__main__"}
    wrong = []
    for path in modules():
        relative = path.relative_to(PACKAGE)
        is_migration = path.parent.name == "migrations"  # the models' test compares them
        if relative.stem in untested or is_migration or not path.read_text().strip():
            continue
        if is_shell(path) and len(importers_of(path)) == 1:
            continue
        name = "_".join(relative.parts[1:]) if len(relative.parts) > 2 else relative.name
        expected = ROOT / "tests" / (relative.parts[0] if len(relative.parts) > 1 else "")
        if not (
            (expected / f"test_{name}").exists() or (expected / f"test_{relative.name}").exists()
        ):
            wrong.append(f"{relative}: no {(expected / f'test_{name}').relative_to(ROOT)}")
    assert not wrong, "\n".join(wrong)


def test_the_import_law_would_catch_a_breach() -> None:
    assert allowed("server", "waltz.store.events")
    assert not allowed("storage", "waltz.store.quorum")
    assert not allowed("client", "waltz.storage.storage_node_shell")
    assert allowed("system", "waltz.cluster.tree")
    assert not allowed("system", "waltz.cluster.cluster_shell")


@pytest.mark.parametrize("page", ["wire", "disk", "journal", "metadata"])
def test_printed_format_pages_exist(page: str) -> None:
    text = (ROOT / "docs" / "formats" / f"{page}.md").read_text()
    assert re.search(r"^# ", text, re.MULTILINE)
