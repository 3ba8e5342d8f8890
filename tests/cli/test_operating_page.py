"""What `docs/operating/cluster.md` shows works as it stands there, line by line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.operated_cluster import OperatedCluster, run_settled
from tests.clusters import ROOT, run_tool

PAGE = (ROOT / "docs" / "operating" / "cluster.md").read_text()
NODES = ("s1", "s2", "s3", "s4", "s5")


def lines() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def with_real_addresses(cluster: OperatedCluster, line: str) -> list[str]:
    """The words of a command, with the ports that the nodes of this test have."""
    for name in NODES:
        place = cluster.storages[name]
        if f"-s {name}.example" in line:
            line = line.replace("-a 7202", f"-a {place.admin.rpartition(':')[2]}")
        line = line.replace(f"{name}.example:7201", place.address)
    return shlex.split(line)[1:]


def play(cluster: OperatedCluster, line: str) -> None:
    match re.split(r"\s+", line):
        case ["export", setting]:
            assert setting == "WALTZ_CLUSTER=zookeeper://zoo.example:2181/prod/waltz"
        case ["waltz", "storage", file]:
            cluster.start_storage(file.removesuffix(".yml"))
        case ["waltz", "server", file]:
            cluster.start_server(file.removesuffix(".yml"))
        case ["waltz", "cluster", "verify"]:
            cluster.wait_until_verified("after what stands above it")
            cluster.append(0, "a transaction")
        case ["waltz", *_]:
            said = run_settled(*with_real_addresses(cluster, line))
            assert said.code == 0, (line, said.out, said.err)
        case ["systemctl", "stop", _, "#", "on", name]:
            cluster.end(name)
        case ["mv", *_, "#", "on", name]:
            directory = cluster.storages[name].directory
            directory.rename(directory.with_suffix(".lost"))
            directory.mkdir()
        case _:
            raise AssertionError(f"nothing known to do for {line!r}")


@pytest.mark.processes
def test_every_command_of_the_page_does_what_it_says(
    blank: OperatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CM-29, TL-02 to TL-10, TL-21 to TL-25, TL-51: create, add, replace, lose a disk, delete."""
    monkeypatch.setenv("WALTZ_CLUSTER", blank.coordinator)
    for name in NODES:
        blank.place_storage(name)
    for line in lines():
        play(blank, line)
    assert blank.processes.keys() == {"s2", "s3", "s4", "s5"}
    for name in [*blank.processes]:
        blank.end(name)


def test_the_page_names_what_there_is() -> None:
    for words in re.findall(r"`waltz ((?:cluster|admin storage|admin server) [^`]+)`", PAGE):
        *group, command = words.split()[: 3 if words.startswith("admin") else 2]
        assert run_tool(*group, command.strip(","), "-h").code == 0, words
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (Path(ROOT) / "docs" / "operating" / target).exists(), target
    checks = re.findall(r"^\| `([a-z]+)` \| ", PAGE.split("## Is it all right?")[1], re.MULTILINE)
    assert checks == [
        "assignment", "servers", "connectivity", "storages", "quorum", "recovery", "health"
    ]  # fmt: skip
