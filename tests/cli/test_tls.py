"""A whole cluster that speaks nothing but TLS (TS-01, TS-02)."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import RunningCluster, run_waltz, running_cluster
from waltz.types import Address

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
    status = run_waltz("status", *where, "--json")
    assert json.loads(status.stdout)["healthy"], status.stderr


def test_in_the_directory_above_the_files_are_found(secured: RunningCluster) -> None:
    done = run_waltz("status", "--json", cwd=secured.directory.parent)
    assert json.loads(done.stdout)["healthy"], done.stderr


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


@pytest.mark.parametrize("shown", [False, True])
def test_who_cannot_show_a_certificate_is_told_why(secured: RunningCluster, shown: bool) -> None:
    options = client_options(secured)[:2] if shown else []
    done = run_waltz("status", "--cluster", secured.coordinator, *options)
    assert done.returncode == 1
    if shown:
        assert "it probably demands a certificate" in done.stderr
    else:
        assert "it takes TLS only" in done.stderr


def test_a_client_of_another_start_is_refused(secured: RunningCluster, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "other", "--partitions", "1", "--tls") as other:
        shutil.copytree(other.directory / "tls", tmp_path / "tls")
    done = run_waltz(
        *("status", "--cluster", secured.coordinator),
        *("--tls-ca", str(tmp_path / "tls" / "ca.pem")),
    )
    assert done.returncode == 1
    assert "its certificate is signed by none of the CAs in" in done.stderr


def test_without_the_option_the_next_start_is_plain_again(tmp_path: Path) -> None:
    directory = tmp_path / "waltz-data"
    with running_cluster(directory, "--partitions", "1", "--tls"):
        assert sorted(path.name for path in (directory / "tls").iterdir()) == [
            "ca.pem",
            "client.pem",
            "node.pem",
        ]
        assert all(path.stat().st_mode & 0o77 == 0 for path in (directory / "tls").iterdir())
    with running_cluster(directory) as cluster:
        done = run_waltz("status", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["healthy"], done.stderr
        assert cluster.coordinator
