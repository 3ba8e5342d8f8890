"""Callables that options name."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from waltz.cli.user_code import named_callable


def test_a_callable_of_the_working_directory_is_found_inside_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger_code.py").write_text(
        "class Ledger:\n    @staticmethod\n    def is_well(state):\n        return state == 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert named_callable("--test", "ledger_code:Ledger.is_well")(7)


@pytest.mark.parametrize(
    "text", ["nocolon", ":x", "x:", "no_such_module:f", "builtins:nope", "math:pi"]
)
def test_what_is_no_callable_is_refused_with_the_options_name(text: str) -> None:
    with pytest.raises(click.BadParameter, match="--test") as raised:
        named_callable("--test", text)
    assert text in str(raised.value)
