"""A whole cluster that speaks nothing but TLS (TS-01, TS-02)."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import RunningCluster, run_waltz, running_cluster, wait_until_healthy
from tests.shares import one_in
from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper
from waltz.cli.trial_directory import choose_ports
from waltz.types import Address, TlsSettings

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("secured") / "waltz-data"
    with running_cluster(directory, "--partitions", "1", "--tls") as cluster:
        yield cluster


def client_options(cluster: RunningCluster) -> list[str]:
    tls = cluster.directory / "tls"
    return ["--tls-ca", str(tls / "ca.pem"), "--tls-cert", str(tls / "client.pem")]


def test_what_is_appended_is_tailed_over_tls(secured: RunningCluster) -> None:
    where = ["--cluster", secured.coordinator, *client_options(secured)]
    done = run_waltz("append", *where, "--partition", "0", "eins", "zwei")
    assert done.stdout.split() == ["0", "1"], done.stderr
    tailed = run_waltz("tail", *where, "--partition", "0", "--from", "earliest", "--no-follow")
    assert tailed.stdout.splitlines() == ["0\t0\teins", "1\t0\tzwei"], tailed.stderr
    wait_until_healthy(*where)


def test_in_the_directory_above_the_files_are_found(secured: RunningCluster) -> None:
    wait_until_healthy(cwd=secured.directory.parent)


def test_tools_ask_every_port_over_tls(secured: RunningCluster) -> None:
    """TL-51, TS-01: also on the embedded coordinator, and with the options of the command line."""
    found = ["--cluster", secured.coordinator, *client_options(secured)]
    for where, directory in ((found, None), ([], secured.directory.parent)):
        done = run_waltz("cluster", "verify", *where, "--json", cwd=directory)
        assert json.loads(done.stdout)["passed"], (done.stdout, done.stderr)
        listed = run_waltz("admin", "storage", "list", *where, "--json", cwd=directory)
        assert [each["trouble"] for each in json.loads(listed.stdout)] == [None] * 3, listed.stderr


def test_every_port_refuses_plain(secured: RunningCluster) -> None:
    state = secured.state
    ports = [state["coordinator"], *(server["address"] for server in state["servers"])]
    ports += [storage[which] for storage in state["storages"] for which in ("address", "admin")]
    assert len(ports) == 8
    for port in ports:
        with socket.create_connection(Address.parse(port), timeout=10) as plain:
            plain.sendall(b"H")
            assert plain.recv(1000)[:1] == b"\x15", port


@pytest.mark.parametrize("shown", one_in(2, [False, True]))
def test_who_cannot_show_a_certificate_is_told_why(secured: RunningCluster, shown: bool) -> None:
    options = client_options(secured)[:2] if shown else []
    done = run_waltz("status", "--cluster", secured.coordinator, *options)
    assert done.returncode == 1
    if shown:
        assert "it probably demands a certificate" in done.stderr
    else:
        assert "it takes TLS only" in done.stderr


@pytest.mark.long
def test_a_client_of_another_cluster_is_refused(secured: RunningCluster, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "other", "--partitions", "1", "--tls") as other:
        shutil.copytree(other.directory / "tls", tmp_path / "tls")
    done = run_waltz(
        *("status", "--cluster", secured.coordinator),
        *("--tls-ca", str(tmp_path / "tls" / "ca.pem")),
    )
    assert done.returncode == 1
    assert "its certificate is signed by none of the CAs in" in done.stderr


@pytest.mark.long
def test_the_next_start_has_the_same_certificates_unless_it_is_told_to_speak_plain(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "waltz-data"
    with running_cluster(directory, "--partitions", "1", "--tls"):
        files = {path.name: path.read_bytes() for path in (directory / "tls").iterdir()}
        assert sorted(files) == ["ca.key.pem", "ca.pem", "client.pem", "node.pem"]
        shutil.copytree(directory / "tls", tmp_path / "of-a-client")
    with running_cluster(directory) as cluster:
        assert {path.name: path.read_bytes() for path in (directory / "tls").iterdir()} == files
        kept = [f"--tls-ca={tmp_path}/of-a-client/ca.pem"]
        kept += [f"--tls-cert={tmp_path}/of-a-client/client.pem"]
        wait_until_healthy("--cluster", cluster.coordinator, *kept)
    with running_cluster(directory, "--no-tls"):
        wait_until_healthy(cwd=tmp_path)
    assert {path.name: path.read_bytes() for path in (directory / "tls").iterdir()} == files


def storage_process(cluster: OperatedCluster, name: str, tls: TlsSettings) -> list[str]:
    place = cluster.storages[name]
    return [
        *("storage", "--directory", str(place.directory), "--coordinator", cluster.coordinator),
        *("--address", place.address, "--admin-address", place.admin, "--disk-free-min", "1MiB"),
        *tls_arguments(tls),
    ]


def tls_arguments(tls: TlsSettings) -> list[str]:
    assert tls.authorities is not None
    assert tls.certificate is not None
    return ["--tls-ca", tls.authorities, "--tls-cert", tls.certificate]


def server_file(
    directory: Path, cluster: OperatedCluster, port: int, **prefixes: TlsSettings
) -> str:
    """Write a server's configuration with certificates below the prefixes given."""
    lines = [
        f"coordinator.address: '{cluster.coordinator}'",
        f"server: {{bindAddress: 127.0.0.1, port: {port}}}",
    ]
    for prefix, tls in prefixes.items():
        dotted = prefix.replace("__", ".")
        lines += [
            f"{dotted}.keyStore.location: {tls.certificate}",
            f"{dotted}.trustStore.location: {tls.authorities}",
        ]
    path = directory / "server.yml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.long
def test_a_server_stands_between_two_authorities(
    operators_zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    """TS-04: clients and storage nodes know nothing of each other's CA, and the server shows each
    of them a certificate that it believes."""
    outer, inner = TlsFiles(tmp_path), TlsFiles(tmp_path)
    with operated_cluster(tmp_path / "between", operators_zookeeper) as cluster:
        cluster.done("cluster", "create", "--name", "between", "--partitions", "1")
        cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        cluster.run("s1", *storage_process(cluster, "s1", inner.peer()))
        cluster.done("admin storage", "sync-partitions", *tls_arguments(inner.peer()))
        (port,) = choose_ports("127.0.0.1", 0, 1)
        shared = server_file(tmp_path, cluster, port, server__ssl=outer.peer())
        where = ("append", "--cluster", f"waltz://127.0.0.1:{port}", "--partition", "0")

        cluster.run("v1", "server", shared)
        status = cluster.tool("cluster", "status", "--json", *tls_arguments(outer.peer())).json
        assert status["partitions"][0]["writable"] is False, "one setting for both does not do"
        cluster.end("v1")

        apart = server_file(
            tmp_path, cluster, port, server__ssl=outer.peer(), server__storage__ssl=inner.peer()
        )
        cluster.run("v1", "server", apart)
        said = run_waltz(*where, *tls_arguments(outer.peer()), "through both")
        assert said.stdout == "0\n", said.stderr
        refused = run_waltz(*where, *tls_arguments(inner.peer()), "from inside")
        assert refused.returncode == 1
        assert "signed by none of the CAs" in refused.stderr
