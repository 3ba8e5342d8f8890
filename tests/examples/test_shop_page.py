"""What docs/shop.md shows works, counts what it says it counts, and names tests that exist."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.clusters import ROOT

PAGE = (ROOT / "docs" / "shop.md").read_text()
SHOP = ROOT / "examples" / "shop"
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<waltz>[^|]+) \| (?P<phases>[^|]+) \|", re.MULTILINE)


def code_lines(path: Path) -> int:
    """Return the lines that hold code: no blank lines, comments or docstrings."""
    source = path.read_text()
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in {
            tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENDMARKER,
        }:  # fmt: skip
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def test_lines_of_code_are_counted_without_words_and_blanks(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Words,\nand more."""\n\nx = 1  # why\n# note\ny = (\n    2,\n)\n')
    assert code_lines(module) == 4


def test_the_sizes_of_the_page_are_those_of_the_files() -> None:
    shown = {
        row["what"].strip(): (row["waltz"].strip(), row["phases"].strip())
        for row in ROW.finditer(PAGE.split("## Size")[1].split("\n## ")[0])
    }
    waltz, phases = SHOP, SHOP / "two_phase"
    sizes = {
        "orders": (code_lines(waltz / "orders.py"), code_lines(phases / "orders.py")),
        "inventory": (code_lines(waltz / "inventory.py"), code_lines(phases / "inventory.py")),
        "payments": (code_lines(waltz / "payments.py"), code_lines(phases / "payments.py")),
        "the frame that they share": (
            code_lines(waltz / "service.py"),
            code_lines(phases / "participant.py"),
        ),
        "the coordinator": (0, code_lines(phases / "coordinator.py")),
    }
    sizes["all"] = (
        sum(each for each, _ in sizes.values()),
        sum(each for _, each in sizes.values()),
    )
    wanted = {name: (str(one or "none"), str(two)) for name, (one, two) in sizes.items()}
    assert {name: shown.get(name) for name in wanted} == wanted


def test_every_line_about_a_failure_names_a_test_that_exists() -> None:
    table = PAGE.split("## Failures")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 6
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_shop*.py"))
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line)
        assert named, line
        for name in named:
            assert f"def {name}(" in tests, name


@pytest.mark.long
@pytest.mark.processes
def test_the_commands_of_the_page_do_what_it_says() -> None:
    assert COMMANDS[0] == "pip install '.[shop]'"
    for command in COMMANDS[1:]:
        program, *arguments = command.split()
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.search(r"^\d+ checks: all right$", done.stdout, re.MULTILINE), done.stdout
