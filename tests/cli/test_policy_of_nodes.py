"""The real tools against a cluster whose servers and storage nodes ask a policy, over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.bridge.judge import read_received
from tests.bridge.kills import configuration, receiving
from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import Said, run_tool, wait_until
from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper
from waltz.cli.trial_directory import choose_ports
from waltz.outbox.outbox_tables import OutboxStore, relay_engine
from waltz.types import TlsSettings

pytestmark = pytest.mark.processes

POLICY = """
version: 1
mode: deny
default: deny
roles:
  node: {verbs: [server]}
  operator: {verbs: [read, status, server], partitions: all}
  keeper: {verbs: [admin, status]}
  asker: {verbs: [status]}
  teller: {verbs: [read, status, explain], partitions: all}
  writer: {verbs: [read, append], partitions: all}
  archiver: {verbs: [read], partitions: all}
  reader: {verbs: [read, status], partitions: all}
grants:
  "spiffe://tests/server": [node]
  "spiffe://tests/ann": [operator]
  "spiffe://tests/orders": [writer]
  "spiffe://tests/bob": [keeper]
  "spiffe://tests/teller": [teller]
  "spiffe://tests/carl": [asker]
  "spiffe://tests/archive": [archiver]
  "spiffe://tests/spark": [reader]
  "token:batch": [writer]
"""


@dataclass
class Governed:
    """A cluster of one server and one storage node; both deny what the policy does not grant."""

    cluster: OperatedCluster
    files: TlsFiles
    server: str
    token: Path
    """The file of a token that the server knows."""

    def options(self, name: str) -> list[str]:
        assert self.files.authorities is not None
        certificate = self.files.issue(name, "127.0.0.1", "localhost")
        return ["--tls-ca", self.files.authorities, "--tls-cert", certificate]

    def tool(self, name: str, group: str, command: str, *arguments: str) -> Said:
        """Run a tool of the coordinator's with the certificate of `name`."""
        return self.cluster.tool(group, command, *arguments, *self.options(name))

    def client(self, name: str, command: str, *arguments: str) -> Said:
        where = ("--cluster", f"waltz://{self.server}")
        return run_tool(command, *where, *arguments, *self.options(name))


@pytest.fixture(scope="module")
def governed(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Governed]:
    directory = tmp_path_factory.mktemp("governed")
    policy = directory / "policy.yaml"
    policy.write_text(POLICY)
    files = TlsFiles(directory)
    with operated_cluster(directory / "governed", operators_zookeeper) as cluster:
        cluster.done("cluster", "create", "--name", "governed", "--partitions", "2")
        place = cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        (port,) = choose_ports("127.0.0.1", 0, 1)
        governed = Governed(cluster, files, f"127.0.0.1:{port}", directory / "token")
        access = f"access.policy: {policy}\n"
        (directory / "storage.yml").write_text(access)
        token = run_tool("policy", "token", "batch", "--json").json
        (directory / "tokens.yaml").write_text(f"{token['line']}\n")
        governed.token.write_text(f"{token['token']}\n")
        tokens = f"access.tokens: {directory / 'tokens.yaml'}\n"
        (directory / "server.yml").write_text(access + tokens)
        cluster.run(
            "s1",
            *("storage", str(directory / "storage.yml"), "--directory", str(place.directory)),
            *("--coordinator", cluster.coordinator, "--address", place.address),
            *("--admin-address", place.admin, "--disk-free-min", "1MiB"),
            *governed.options("node"),
        )
        cluster.done("admin storage", "sync-partitions", *governed.options("bob"))
        cluster.run(
            "v1",
            *("server", str(directory / "server.yml"), "--coordinator", cluster.coordinator),
            *("--address", governed.server, *governed.options("server")),
        )
        written = governed.client("orders", "append", "--partition", "0", "eins", "zwei")
        assert written.out == "0\n1\n", written.err
        yield governed


NODE = ("--storage", "ADMIN")
TOOLS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("bob", "admin storage", "list", ()),
    ("bob", "admin storage", "sync-partitions", ()),
    ("bob", "admin storage", "access", (*NODE, "-p", "1", "--reads", "on", "--writes", "on")),
    ("bob", "admin storage", "availability", (*NODE, "-p", "1", "--online", "true")),
    ("carl", "admin storage", "validate", ()),
    ("ann", "admin storage", "max-transaction-id", (*NODE, "-p", "0")),
    ("carl", "cluster", "list", ()),
    ("carl", "cluster", "status", ()),
    ("carl", "cluster", "verify", ()),
]


@pytest.mark.parametrize(("name", "group", "command", "arguments"), TOOLS)
def test_the_tools_of_storage_nodes_work_for_operators_who_are_granted_their_verbs(
    governed: Governed, name: str, group: str, command: str, arguments: tuple[str, ...]
) -> None:
    admin = governed.cluster.storages["s1"].admin
    given = [admin if each == "ADMIN" else each for each in arguments]
    said = governed.tool(name, group, command, *given)
    assert said.code == 0, (said.out, said.err)


def test_status_needs_the_verb_status_at_servers_and_storage_nodes(governed: Governed) -> None:
    def status() -> Any:
        return json.loads(governed.client("carl", "status", "--json").out)

    wait_until(lambda: status()["healthy"] is True, "it is not healthy")
    assert [each["reachable"] for each in status()["storages"]] == [True]
    assert governed.client("orders", "status", "--json").code != 0


@pytest.mark.parametrize(
    ("group", "command", "arguments"),
    [each[1:] for each in TOOLS if each[2] == "max-transaction-id"],
)
def test_what_speaks_to_the_port_of_servers_needs_server(
    governed: Governed, group: str, command: str, arguments: tuple[str, ...]
) -> None:
    admin = governed.cluster.storages["s1"].admin
    given = [admin if each == "ADMIN" else each for each in arguments]
    said = governed.tool("carl", group, command, *given)
    assert said.code == 1
    assert "closed the connection" in said.out + said.err


@pytest.mark.parametrize(("name", "is_told"), [("spark", False), ("teller", True)])
def test_a_transaction_is_explained_in_full_with_read_status_and_explain(
    governed: Governed, name: str, is_told: bool
) -> None:
    said = governed.cluster.tool("explain", "0:0", "--json", *governed.options(name))
    assert said.json["committed"] is True, (said.out, said.err)
    assert (said.json["refusals_problem"] is None) is is_told


def test_a_reader_tails_the_log(governed: Governed) -> None:
    said = governed.client(
        "archive", "tail", "--partition", "0", "--from", "earliest", "--no-follow"
    )
    assert said.out.splitlines()[:2] == ["0\t0\teins", "1\t0\tzwei"], (said.out, said.err)


@pytest.mark.parametrize("name", ["spark", "orders", "server", "nobody"])
def test_whoever_has_no_admin_uses_no_tool_of_storage_nodes(governed: Governed, name: str) -> None:
    node = ("--storage", governed.cluster.storages["s1"].admin)
    for command, arguments in (
        ("availability", (*node, "--partition", "0", "--online", "false")),
        ("remove-partition", (*node, "--partition", "0", "--delete-storage-files")),
    ):
        said = governed.tool(name, "admin storage", command, *arguments)
        assert said.code != 0, (command, said.out, said.err)
    written = governed.client("orders", "append", "--partition", "0", "drei")
    assert written.code == 0, written.err


@pytest.mark.parametrize(
    ("name", "copies", "code"), [("archive", 0, 0), ("archive", 1, 0), ("bob", 1, 1)]
)
def test_an_archiver_needs_read_also_to_compare_copies(
    governed: Governed, tmp_path: Path, name: str, copies: int, code: int
) -> None:
    file = tmp_path / "archive.yml"
    file.write_text(
        f"coordinator.address: '{governed.cluster.coordinator}'\n"
        f"archive.target: file://{tmp_path}/backup\n"
        f"archive.verifyReplicas: {copies}\n"
        f"ssl.keyStore.location: {governed.files.issue(name)}\n"
        f"ssl.trustStore.location: {governed.files.authorities}\n"
    )
    said = run_tool("archive", "run", str(file), "--once")
    assert said.code == code, (said.out, said.err)
    if code == 0:
        where = ("--coordinator", governed.cluster.coordinator, *governed.options("bob"))
        planned = run_tool(
            *("restore", "partition", f"file://{tmp_path}/backup", "-p", "0", "--plan"), *where
        )
        assert ": it answers, and holds" in planned.err, (planned.out, planned.err)


def test_a_client_without_a_certificate_is_known_by_its_token(
    governed: Governed, tmp_path: Path
) -> None:
    def append(token: Path, data: str) -> Said:
        assert governed.files.authorities is not None
        shown = ["--tls-ca", governed.files.authorities, "--token-file", str(token)]
        place = ["--cluster", f"waltz://{governed.server}"]
        return run_tool("append", *place, "--partition", "1", "--timeout", "5", data, *shown)

    assert append(governed.token, "drei").out == "0\n"
    strange = tmp_path / "token"
    strange.write_text(run_tool("policy", "token", "batch", "--json").json["token"])
    said = append(strange, "vier")
    assert said.code != 0
    assert "the bearer token is not known here" in said.err
    log = (governed.cluster.directory / "v1.log").read_text()
    assert "client_unidentified" in log
    for each in (governed.token, strange):
        assert each.read_text().strip() not in log + said.err + said.out


def test_a_relay_and_a_bridge_show_the_token_in_their_files(
    governed: Governed, tmp_path: Path
) -> None:
    store = OutboxStore(relay_engine(f"sqlite:///{tmp_path / 'app.db'}"), "waltz_outbox")
    store.create()
    with store.engine.begin() as connection:
        for data in (b"vier", b"fuenf"):
            values = {"partition_key": "one", "data": data}
            connection.execute(store.tables.rows.insert().values(values))
    file = tmp_path / "outbox.yaml"
    file.write_text(
        f"outbox.cluster: waltz://{governed.server}\n"
        f"outbox.database: sqlite:///{tmp_path / 'app.db'}\n"
        f"ssl.trustStore.location: {governed.files.authorities}\n"
        f"ssl.tokenFile: {governed.token}\n"
    )
    said = run_tool("outbox", "run", str(file), "--once")
    assert said.code == 0, said.err
    assert store.counted() == {"waiting": 0, "parked": 0}
    store.engine.dispose()
    with receiving(tmp_path / "kept", 0.0) as port:
        bridge = configuration(
            tmp_path, f"waltz://{governed.server}", f"http://127.0.0.1:{port}/in"
        )
        tls_lines = file.read_text().splitlines()[2:]
        bridge.write_text("\n".join([bridge.read_text(), *tls_lines, ""]))
        said = run_tool("bridge", "http", str(bridge), "--once")
        assert said.code == 0, said.err
        posted = [data for each in read_received(tmp_path / "kept", 2) for _, _, data in each]
    assert [each for each in posted if each in (b"vier", b"fuenf")] == [b"vier", b"fuenf"]
    tls = TlsSettings(authorities=governed.files.authorities, token_file=str(governed.token))
    with waltz.open_reader(f"waltz://{governed.server}", tls=tls) as log:
        found = [
            data
            for each in range(log.partition_count)
            for columns in log.read(each, 0, log.high_water_mark(each) + 1)
            for data in columns.data
        ]
    assert [each for each in found if each in (b"vier", b"fuenf")] == [b"vier", b"fuenf"]
