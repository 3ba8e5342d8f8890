"""`docs/operating/proofs.md` line by line on a running cluster, whose records are then forged."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

import waltz
from tests.archive.archives import add, directory_target
from tests.client.applications import Recorder
from tests.clusters import ROOT, RunningCluster, Said, run_tool, running_cluster
from tests.damage import change_data
from waltz.cli.trial_directory import choose_ports

PAGE = (ROOT / "docs" / "operating" / "proofs.md").read_text()
ARCHIVE_URL = "file:///backup/orders"
WITNESS = "127.0.0.1:7190"

pytestmark = pytest.mark.processes


class World:
    """A cluster, its archive, and the directory in which the page's commands were given."""

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.url = f"file://{directory}/backup"
        self.said = ""

    def check(self, *arguments: str) -> Said:
        return run_tool(
            *("attest", "check", self.url, "--log-key", self.directory / "log.pub"), *arguments
        )

    def against(self, what: str) -> Said:
        return self.check("--against", what, "--cluster", self.cluster.coordinator, "--json")


def page_lines() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """After all commands of the page, in its order, by one shell."""
    directory = tmp_path_factory.mktemp("proofs")
    with running_cluster(tmp_path_factory.mktemp("cluster"), "--partitions", "2") as cluster:
        with waltz.open_client(cluster.coordinator, Recorder()) as client:
            client.append_many(0, [b"%d" % number * (number % 50) for number in range(3000)])
            client.append_many(1, [b"x" * 100_000] * 30)
        world = World(cluster, directory)
        file = directory / "archive.yml"
        file.write_text(
            f"archive.target: {world.url}\ncoordinator.address: {cluster.coordinator}\n"
        )
        assert run_tool("archive", "run", file, "--once").code == 0
        world.said = played(world)
        yield world


def played(world: World) -> str:
    """Give the commands of the page to a shell; return all that they say. A command that fails
    ends it."""
    (port,) = choose_ports("127.0.0.1", 0, 1)
    commands = [line.removeprefix("$ ") for line in page_lines() if line.startswith("$ ")]
    witness = [place for place, line in enumerate(commands) if line.endswith(" &")]
    assert len(witness) == 1
    commands[witness[0]] = (
        commands[witness[0]].removesuffix(" &")
        + " > witness.out & trap 'kill %1' EXIT; while ! grep -q ready witness.out; do :; done"
    )
    numbered = [f"echo '$ {number}'\n{line}" for number, line in enumerate(commands)]
    script = "\n".join(["set -e", *numbered])
    script = script.replace(ARCHIVE_URL, world.url).replace(WITNESS, f"127.0.0.1:{port}")
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=world.directory,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "WALTZ_CLUSTER": world.cluster.coordinator,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def words_of(line: str) -> list[str]:
    """The words of a line without what differs from run to run."""
    return re.findall(
        r"[a-z][a-z-]+(?![a-z0-9.:])", re.sub(r"[0-9a-f-]{8,}\.*|waltz/\S+", "", line)
    )


def test_every_command_of_the_page_does_what_it_says(world: World) -> None:
    said = [
        re.split(r"\n", block) for block in re.split(r"^\$ \d+\n", world.said, flags=re.MULTILINE)
    ]
    shown: list[list[str]] = [[]]
    for line in page_lines():
        if line.startswith("$ "):
            shown.append([])
        else:
            shown[-1].append(line)
    assert len(said) == len(shown)
    for lines, expected in zip(said, shown, strict=True):
        for line in expected:
            assert any(words_of(line) == words_of(each)[: len(words_of(line))] for each in lines), (
                line,
                lines,
            )
    for number in (
        "3,000 transactions attested, 3,000 of them new",
        "cosigned by 1 of 1 witnesses",
    ):
        assert number in world.said
        assert number in PAGE


def test_a_proof_is_checked_in_an_empty_directory_without_a_network(
    world: World, tmp_path: Path
) -> None:
    """As a third party would: it has the proof, two public keys and the program."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    for name in ("471.tlog-proof", "log.pub", "witness.pub"):
        (tmp_path / name).write_bytes((world.directory / name).read_bytes())
    command = [
        *("unshare", *user, "--net", sys.executable, "-m", "waltz.cli.main", "verify-proof"),
        *("471.tlog-proof", "--log-key", "log.pub", "--witness-key", "witness.pub"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "the proof holds: transaction 471 of partition 0" in done.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "471.tlog-proof", "log.pub", "witness.pub"
    ]  # fmt: skip
    proof = (tmp_path / "471.tlog-proof").read_text()
    (tmp_path / "471.tlog-proof").write_text(proof.replace("index 471", "index 472"))
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "the proof does not hold" in done.stdout) == (1, True)


def test_there_is_no_network_in_that_test() -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    connect = "import socket; socket.create_connection(('127.0.0.1', 1))"
    done = subprocess.run(
        ["unshare", *user, "--net", sys.executable, "-c", connect],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Network is unreachable" in done.stderr


def test_the_page_names_what_there_is() -> None:
    for target in re.findall(r"\]\((?!https:)([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / "operating" / target).exists(), target


def test_both_faces_of_the_reader_hand_on_what_is_proven(world: World) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    example = example.replace(ARCHIVE_URL, world.url)
    example = example.replace("waltz://server.example:7101", world.cluster.coordinator)
    example = example.replace('open("', f'open("{world.directory}/')
    found: list[bytes] = []
    exec(example.replace("...", "found.extend(columns.data)"), {"waltz": waltz, "found": found})
    assert found == [b"%d" % number * (number % 50) for number in range(3000)]

    async def read() -> list[bytes]:
        async with waltz.open_async_reader(world.cluster.coordinator) as log:
            await log.require_attested(opened(world, world.url))
            return [data async for columns in log.read(0, 100, 700) for data in columns.data]

    assert asyncio.run(read()) == found[100:700]


def opened(world: World, url: str) -> waltz.AttestedLog:
    return waltz.open_attested(url, log_key=(world.directory / "log.pub").read_text())


def taken(columns: Iterator[waltz.TransactionColumns], count: int) -> list[bytes]:
    """Return the data of the next transactions, at least `count` if there are as many."""
    found: list[bytes] = []
    while len(found) < count:
        found += next(columns).data
    return found


def test_a_reader_stops_before_what_is_not_attested(world: World) -> None:
    with waltz.open_client(world.cluster.coordinator, Recorder()) as client:
        client.append(1, b"not attested yet")
    with waltz.open_reader(world.cluster.coordinator) as log:
        log.require_attested(opened(world, world.url))
        columns = log.read(1, 0, 31)
        found = taken(columns, 30)
        with pytest.raises(waltz.AttestationError, match="transaction 30 of partition 1 is not"):
            next(columns)
        assert found == [b"x" * 100_000] * 30
        with pytest.raises(waltz.LocalProtocolError, match="give no `wants_data`"):
            log.read(1, 0, 1, wants_data=lambda headers: headers == 0)


def test_a_reader_that_follows_waits_until_it_is_attested(world: World, tmp_path: Path) -> None:
    """In a copy of the archive, whose checkpoint no witness will have signed."""
    shutil.copytree(world.directory / "backup", tmp_path / "backup")
    url, file = f"file://{tmp_path}/backup", tmp_path / "archive.yml"
    file.write_text(f"archive.target: {url}\ncoordinator.address: {world.cluster.coordinator}\n")
    with waltz.open_reader(world.cluster.coordinator) as log:
        attested = opened(world, url)
        log.require_attested(attested)
        columns = log.follow(1, 20)
        assert len(taken(columns, 10)) == 10
        with waltz.open_client(world.cluster.coordinator, Recorder()) as client:
            number = client.append(1, b"the next one")
        assert run_tool("archive", "run", file, "--once").code == 0
        kept = attested.checkpoint(log.cluster_key, 1)
        said = run_tool("attest", "run", url, "--key", world.directory / "log.key")
        assert f"{number + 1} transactions attested, {number - 29} of them new" in said.out
        assert taken(columns, number - 29)[-1] == b"the next one"
        assert attested.checkpoint(log.cluster_key, 1) != kept


def test_a_log_that_is_not_the_attested_one_is_refused_by_name(
    world: World, tmp_path: Path
) -> None:
    """The same key signs a tree of other records: what the servers hand out is not in it."""
    with waltz.open_reader(world.cluster.coordinator) as log:
        key = UUID(str(log.cluster_key))
        add(directory_target(tmp_path / "fork"), {0: [(0, 100)]}, key=key)
        url = f"file://{tmp_path}/fork"
        assert run_tool("attest", "run", url, "--key", world.directory / "log.key").code == 0
        log.require_attested(opened(world, url))
        with pytest.raises(waltz.AttestationError, match="transaction 0 is not proven"):
            next(log.read(0, 0, 50))


def test_the_running_log_is_compared_and_a_forged_copy_is_found(world: World) -> None:
    """The last test: a copy stays forged. Its owner made both checksums fit."""
    assert world.against("log").code == 0
    said = world.against("replicas")
    assert said.code == 0
    wheres = {each["where"] for each in said.json["partitions"]}
    assert len(wheres) == 4
    node = world.cluster.directory / "storage-2"
    change_data(node, 0, 1234, also_record_checksum=True, also_data_checksum=True)
    said = world.against("replicas")
    assert said.code == 1
    (wrong,) = (each for each in said.json["partitions"] if each["is_well"] is not True)
    assert (wrong["partition"], wrong["transaction"]) == (0, 1234)
    assert wrong["where"] != "archive"
    assert wrong["finding"] == "transaction 1234 is not the one that was attested"
    # Without the checksums the storage node finds it by itself, and hands out what is before.
    change_data(node, 0, 1200)
    said = world.against("replicas")
    (wrong,) = (each for each in said.json["partitions"] if each["is_well"] is not True)
    assert (said.code, wrong["transaction"]) == (1, 1200)
    assert "cannot be read: the storage node says" in wrong["finding"]


@pytest.mark.long
def test_a_storage_node_that_is_away_leaves_the_answer_open(world: World) -> None:
    os.kill(world.cluster.pid("storage-3"), 19)
    try:
        said = world.against("replicas")
    finally:
        os.kill(world.cluster.pid("storage-3"), 18)
    unknown = [each for each in said.json["partitions"] if each["is_well"] is None]
    assert {each["partition"] for each in unknown} == {0, 1}


def test_another_clusters_log_is_not_compared(world: World, tmp_path: Path) -> None:
    add(directory_target(tmp_path / "other"), {0: [(0, 10)]})
    said = run_tool(
        *("attest", "check", f"file://{tmp_path}/other"),
        *("--log-key", world.directory / "log.pub", "--against", "log"),
        *("--cluster", world.cluster.coordinator),
    )
    assert (said.code, "the log is that of" in said.err) == (1, True)
