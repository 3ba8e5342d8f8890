"""`waltz completion`: a real bash completes commands, and each shell has its text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import run_tool


@pytest.mark.parametrize(
    ("shell", "said"),
    [("bash", "complete -o nosort"), ("zsh", "#compdef waltz"), ("fish", "complete ")],
)
def test_each_shell_has_its_text(shell: str, said: str) -> None:
    found = run_tool("completion", shell)
    assert (found.code, said in found.out, "_WALTZ_COMPLETE" in found.out) == (0, True, True)


def test_another_shell_is_refused() -> None:
    assert run_tool("completion", "csh").code == 2


def test_a_bash_completes_groups_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "waltz"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m waltz.cli.main "$@"\n')
    program.chmod(0o700)
    asked = 'eval "$(waltz completion bash)"\n' + "\n".join(
        f"COMPREPLY=(); COMP_WORDS=({words} {begun}) COMP_CWORD={len(words.split())};"
        f' _waltz_completion waltz "{begun}"; echo "${{COMPREPLY[@]}}"'
        for words, begun in (("waltz", "migr"), ("waltz migrate", "conv"), ("waltz up", "--open"))
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["migrate", "convert-config convert-tls", "--open-to-anyone"]
