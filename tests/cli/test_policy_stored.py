"""A policy stored in the coordinator by the real tool, over TLS, at servers that follow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import Said, run_tool, wait_until
from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper
from waltz.cli.trial_directory import choose_ports

pytestmark = pytest.mark.processes

POLICY = """
version: 1
mode: observe
default: deny
roles:
  node: {verbs: [server]}
  operator: {verbs: [status, admin]}
  writer: {verbs: [read, append], partitions: all}
grants:
  "spiffe://tests/server": [node]
  "spiffe://tests/ann": [operator]
  "spiffe://tests/orders": [writer]
"""


@dataclass
class Stored:
    """A cluster of one server and one storage node that follow the coordinator's policy."""

    cluster: OperatedCluster
    files: TlsFiles
    server: str
    directory: Path

    def options(self, name: str) -> list[str]:
        assert self.files.authorities is not None
        certificate = self.files.issue(name, "127.0.0.1", "localhost")
        return ["--tls-ca", self.files.authorities, "--tls-cert", certificate]

    def apply(self, text: str, *options: str, name: str = "ann") -> Said:
        file = self.directory / "new.yaml"
        file.write_text(text)
        where = ("--cluster", self.cluster.coordinator)
        return run_tool("policy", "apply", str(file), *where, *self.options(name), *options)

    def show(self) -> Said:
        return run_tool("policy", "show", "--json", "--cluster", self.cluster.coordinator)

    def append(self, name: str) -> Said:
        where = ("--cluster", f"waltz://{self.server}", "--partition", "0")
        return run_tool("append", *where, "x", *self.options(name))


@pytest.fixture(scope="module")
def stored(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stored]:
    directory = tmp_path_factory.mktemp("stored")
    files = TlsFiles(directory)
    with operated_cluster(directory / "stored", operators_zookeeper) as cluster:
        cluster.done("cluster", "create", "--name", "stored", "--partitions", "1")
        place = cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        (port,) = choose_ports("127.0.0.1", 0, 1)
        stored = Stored(cluster, files, f"127.0.0.1:{port}", directory)
        follows = directory / "follows.yml"
        follows.write_text("access.policy: coordinator\n")
        cluster.run(
            "s1",
            *("storage", str(follows), "--directory", str(place.directory)),
            *("--coordinator", cluster.coordinator, "--address", place.address),
            *("--admin-address", place.admin, "--disk-free-min", "1MiB"),
            *stored.options("node"),
        )
        cluster.done("admin storage", "sync-partitions", *stored.options("ann"))
        cluster.run(
            "v1",
            *("server", str(follows), "--coordinator", cluster.coordinator),
            *("--address", stored.server, *stored.options("server")),
        )
        yield stored


def test_a_policy_is_observed_then_denies_and_whoever_would_be_locked_out_is_named(
    stored: Stored,
) -> None:
    deny = POLICY.replace("version: 1", "version: 2").replace("observe", "deny")
    assert stored.show().code == 1
    assert stored.append("nobody").code == 0
    early = stored.apply(deny)
    assert early.code == 1
    assert "store it with mode: observe first (--yes-deny stores it)" in early.err
    first = stored.apply(POLICY)
    assert first.code == 0, first.err
    assert first.out == "no policy is stored yet\nstored: version 1, mode observe\n"
    attempts = [
        (deny.replace("tests/server", "tests/s"), "ann", "spiffe://tests/server, would not have"),
        (deny.replace("tests/ann", "tests/bob"), "ann", "you, spiffe://tests/ann, would not have"),
        (deny, "bob", "you, spiffe://tests/bob, would not have admin"),
        (deny.replace("version: 2", "version: 1"), "ann", "version 1 is not above 1"),
        (deny.replace("mode: deny", "mode: no"), "ann", "line 3"),
    ]
    for text, name, said in attempts:
        refused = stored.apply(text, "--yes-deny", "--yes-unknown", name=name)
        assert refused.code == 1
        assert said in refused.err
        assert stored.show().json["version"] == 1
    refused = stored.apply(deny, "--json", name="bob")
    assert refused.json["changes"] == [{"mode_before": "observe", "mode_after": "deny"}]
    assert (refused.code, refused.json["stored"], refused.json["fault"]) == (1, False, None)
    told = stored.apply(deny)
    assert told.code == 0, (told.out, told.err)
    assert stored.show().json["text"] == deny
    wait_until(lambda: stored.append("nobody").code != 0, "nobody is still served")
    assert stored.append("orders").code == 0
    log = stored.cluster.directory / "s1.log"

    def is_denied() -> bool:
        stored.cluster.tool("admin storage", "list", *stored.options("orders"))
        return "request_denied" in log.read_text()

    wait_until(is_denied, "the storage node does not follow")
