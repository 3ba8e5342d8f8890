"""What `docs/operating/migrating.md` shows works as it stands there, line by line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.original_site import Site
from tests.clusters import ROOT, run_tool

PAGE = (ROOT / "docs" / "operating" / "migrating.md").read_text()
ASKING = "waltz migrate check -c waltz-tools.yml"


def lines() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ZooKeeper answers here: then something is unknown, and nothing is wrong."""
    site = Site(tmp_path)
    for keys in (site.tools, site.server, site.storage):
        keys["zookeeper.connectString"] = "127.0.0.1:1"
    site.tools["zookeeper.connectTimeout"] = 500
    site.write()
    monkeypatch.chdir(tmp_path)
    assert any(line.startswith(ASKING) for line in lines())
    for line in lines():
        said = run_tool(*shlex.split(line)[1:])
        assert said.code == (3 if "migrate check" in line else 0), (line, said.out, said.err)


def test_the_page_names_what_there_is() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / "operating" / target).exists(), target
