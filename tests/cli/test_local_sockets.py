"""Users of this machine at processes that were started by hand: commands, logs, `--check`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import waltz
from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.client.applications import Recorder
from tests.clusters import Said, run_tool, wait_until
from tests.local_users import OTHER_UID, acting_as, needs_other_users, socket_directory
from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper
from waltz.access.principals import user_principal
from waltz.cli.cluster_place import find_cluster, place_in_file
from waltz.cli.policy_stored import _own_principal
from waltz.cli.trial_directory import choose_ports
from waltz.system.local_users import own_user
from waltz.types import ServersAddress, TlsSettings, parse_cluster

OWN = user_principal(own_user())
POLICY = f"""
version: 1
mode: deny
default: deny
roles:
  node: {{verbs: [server]}}
  operator: {{verbs: [append, read, status, explain, admin], partitions: all}}
  reader: {{verbs: [read, status, explain], partitions: all}}
grants:
  "spiffe://tests/server": [node]
  "{OWN}": [operator]
  "user:daemon": [reader]
cases:
  - {{principal: "user:daemon", verb: read, partition: 0, expect: allow}}
  - {{principal: "user:daemon", verb: append, partition: 0, header: 0, expect: deny}}
  - {{principal: "uid:7", verb: read, partition: 0, expect: deny}}
"""


class Governed:
    """A server and a storage node whose ports want certificates, next to their sockets."""

    def __init__(self, cluster: OperatedCluster, server: str, sockets: Path) -> None:
        self.cluster = cluster
        self.server = server
        self.sockets = sockets

    def client(self, command: str, *arguments: str) -> Said:
        where = ("--cluster", f"waltz://{self.server}", "--local-sockets", str(self.sockets))
        return run_tool(command, *where, *arguments)


@pytest.fixture(scope="module")
def governed(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Governed]:
    directory = tmp_path_factory.mktemp("local-sockets")
    (directory / "policy.yaml").write_text(POLICY)
    files = TlsFiles(directory)

    def options(name: str) -> tuple[str, ...]:
        assert files.authorities is not None
        certificate = files.issue(name, "127.0.0.1", "localhost")
        return "--tls-ca", files.authorities, "--tls-cert", certificate

    with (
        socket_directory() as sockets,
        operated_cluster(directory / "local", operators_zookeeper) as cluster,
    ):
        text = f"access: {{policy: {directory / 'policy.yaml'}, localSockets: {sockets}}}\n"
        (directory / "node.yml").write_text(text)
        cluster.done("cluster", "create", "--name", "local", "--partitions", "1")
        place = cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        (port,) = choose_ports("127.0.0.1", 0, 1)
        cluster.run(
            "s1",
            *("storage", str(directory / "node.yml"), "--directory", str(place.directory)),
            *("--coordinator", cluster.coordinator, "--address", place.address),
            *("--admin-address", place.admin, "--disk-free-min", "1MiB", *options("node")),
        )
        said = cluster.tool(
            "admin storage", "sync-partitions", "--local-sockets", str(sockets)
        )  # an operator without a certificate
        assert said.code == 0, said.err
        cluster.run(
            "v1",
            *("server", str(directory / "node.yml"), "--coordinator", cluster.coordinator),
            *("--address", f"127.0.0.1:{port}", *options("server")),
        )
        yield Governed(cluster, f"127.0.0.1:{port}", sockets)
        cluster.end("v1")
        cluster.end("s1")
        assert list(sockets.iterdir()) == [], "sockets go with their processes"


@pytest.mark.processes
def test_an_operator_of_the_machine_uses_every_tool_without_a_certificate(
    governed: Governed,
) -> None:
    written = governed.client("append", "--partition", "0", "eins", "zwei")
    first, second = map(int, written.out.split())
    assert second == first + 1
    read = governed.client("tail", "--partition", "0", "--from", str(first), "--no-follow")
    assert [line.split("\t")[2] for line in read.out.splitlines()] == ["eins", "zwei"]
    sockets = ("--local-sockets", str(governed.sockets))
    for group, command in (("admin storage", "list"), ("cluster", "verify")):
        said = governed.cluster.tool(group, command, *sockets)
        assert said.code == 0, said.err
    wait_until(
        lambda: governed.client("status", "--json").json["healthy"] is True, "it is not healthy"
    )
    explained = governed.client("explain", f"0:{second}", "--json")
    assert explained.code == 0, explained.err
    assert OWN in explained.out
    without = run_tool("append", "--cluster", f"waltz://{governed.server}", "-p", "0", "x")
    assert without.code != 0


@pytest.mark.processes
def test_an_application_is_shown_to_operators_as_its_user(governed: Governed) -> None:
    tls = waltz.TlsSettings(local_sockets=str(governed.sockets))
    where = f"waltz://{governed.server}"
    with waltz.open_client(where, Recorder(), tls=tls, name="orders", is_consumer=True) as client:
        client.append(0, b"x")
        sockets = ("--cluster", where, "--local-sockets", str(governed.sockets))
        last: list[Said] = []

        def is_shown() -> bool:
            last[:] = [run_tool("consumers", "show", "orders", "--json", *sockets)]
            return last[0].code == 0 and len(last[0].json["clients"]) > 0

        wait_until(is_shown, "the consumer is not shown")
        assert {each["principal"] for each in last[0].json["clients"]} == {OWN}


@pytest.mark.processes
@needs_other_users
def test_another_user_is_told_by_name_what_it_lacks_and_the_log_has_it(
    governed: Governed,
) -> None:
    governed.client("append", "--partition", "0", "drei")  # the modules are loaded
    with acting_as(OTHER_UID):
        denied = governed.client("append", "--partition", "0", "x")
        where = ("--cluster", governed.cluster.coordinator)
        change = ("availability", "--storage", governed.cluster.storages["s1"].admin)
        refused = run_tool(
            *("admin", "storage", *change, "-p", "0", "--online", "true", *where),
            *("--local-sockets", str(governed.sockets)),
        )
    assert denied.code == 1
    assert "user:daemon" in denied.err
    assert refused.code != 0, refused.err
    assert "principal=user:daemon" in (governed.cluster.directory / "s1.log").read_text()
    log = (governed.cluster.directory / "v1.log").read_text()
    (line,) = {each for each in log.splitlines() if "request_denied" in each}
    assert f"peer=uid-{OTHER_UID}:{os.getpid()} principal=user:daemon" in line


@pytest.mark.processes
def test_each_port_has_a_socket_of_its_name(governed: Governed) -> None:
    place = governed.cluster.storages["s1"]
    addresses = (place.address, place.admin, governed.server)
    names = {f"{each.replace(':', '_')}.sock" for each in addresses}
    assert {each.name for each in governed.sockets.iterdir()} == names
    assert all(stat.S_ISSOCK(each.lstat().st_mode) for each in governed.sockets.iterdir())


def test_check_names_what_is_wrong_with_the_directory(tmp_path: Path) -> None:
    def check(role: str, directory: Path, *more: str) -> Said:
        path = tmp_path / "node.yml"
        path.write_text(f"access.localSockets: {directory}\n")
        where = ("--coordinator", "127.0.0.1:1", "--address", "127.0.0.1:2", *more)
        return run_tool(role, str(path), *where, "--check")

    storage = ("--directory", str(tmp_path), "--admin-address", "127.0.0.1:3")
    for role, more in (("server", ()), ("storage", storage)):
        assert "access.localSockets" in check(role, tmp_path, *more).out
        assert "No such file" in check(role, tmp_path / "nothing", *more).err
        deep = tmp_path / ("x" * 100)
        deep.mkdir(exist_ok=True)
        assert "at most 107" in check(role, deep, *more).err
    unshown = check("server", tmp_path, "--advertised", "a/b:7")
    assert "is no name of a host" in unshown.err


def test_policies_are_checked_tested_and_searched_for_users(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    assert run_tool("policy", "check", path).code == 0
    tested = run_tool("policy", "test", path)
    assert tested.code == 0, tested.out + tested.err
    found = run_tool("policy", "who-can", "read", path, "--partition", "0")
    assert "user:daemon" in found.out
    path.write_text(POLICY.replace('"user:daemon": [', '"user:": ['))
    assert "user:... or uid:..." in run_tool("policy", "check", path).err


def test_the_directory_comes_from_an_option_or_the_environment_with_any_place(
    tmp_path: Path,
) -> None:
    given = TlsSettings(local_sockets="/run/waltz")
    servers = parse_cluster("waltz://127.0.0.1:1")
    assert isinstance(servers, ServersAddress)
    assert find_cluster(servers, given).tls.local_sockets == "/run/waltz"
    path = tmp_path / "tool.yml"
    path.write_text("zookeeper.connectString: 127.0.0.1:1\ncluster.root: /x\n")
    assert place_in_file(str(path), given).tls.local_sockets == "/run/waltz"
    assert _own_principal(given) == OWN
    assert _own_principal(TlsSettings()) == "anonymous"
    runner = CliRunner()
    environment = {"WALTZ_LOCAL_SOCKETS": "/run/waltz"}
    from tests.cli.test_tls_options import shown_sockets

    assert runner.invoke(shown_sockets, env=environment).output == "/run/waltz\n"
    assert runner.invoke(shown_sockets, ["--local-sockets", "/x"]).output == "/x\n"
    assert waltz.TlsSettings().local_sockets is None
