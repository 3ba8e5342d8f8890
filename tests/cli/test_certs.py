"""`waltz certs`: what it says, and a cluster whose processes have its certificates."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import waltz
from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import Said, run_tool, run_waltz, wait_until
from tests.zookeepers import RunningZooKeeper
from waltz.cli.certificate_directory import CertificateDirectory
from waltz.cli.trial_directory import choose_ports
from waltz.system.certificates import Identity
from waltz.types import TlsSettings


def certs(directory: Path, command: str, *arguments: str) -> Said:
    return run_tool("certs", command, *arguments, "--directory", directory)


def made(directory: Path) -> Path:
    assert certs(directory, "init").code == 0
    return directory


def test_what_is_printed_says_which_keys_to_set(tmp_path: Path) -> None:
    directory = made(tmp_path / "ca")
    said = certs(directory, "issue", "s1", "--for", "storage", "--host", "10.0.0.21")
    assert f'  storage.ssl.keyStore.location: "{directory}/s1.pem"\n' in said.out
    assert f'  storage.ssl.trustStore.location: "{directory}/ca.pem"\n' in said.out
    said = certs(directory, "issue", "v1", "--for", "server", "--host", "10.0.0.22")
    assert f'  server.ssl.keyStore.location: "{directory}/v1.pem"\n' in said.out
    said = certs(directory, "issue", "me", "--for", "client")
    assert f'  WALTZ_TLS_CERT="{directory}/me.pem"\n' in said.out
    assert f'  WALTZ_TLS_CA="{directory}/ca.pem"\n' in said.out


def test_json_has_what_people_read(tmp_path: Path) -> None:
    directory = tmp_path / "ca"
    found = certs(directory, "init", "--domain", "bank.example", "--days", "800", "--json").json
    assert found["authorities"] == f"{directory}/ca.pem"
    assert (found["uris"], found["used_as"]) == (["spiffe://bank.example"], ["CA"])
    found = certs(
        directory, "issue", "s1", "--for", "storage", "--host", "DB1.example", "--host", "::1",
        "--days", "30", "--json",
    ).json  # fmt: skip
    assert found["settings"] == {
        "storage.ssl.keyStore.location": f"{directory}/s1.pem",
        "storage.ssl.trustStore.location": f"{directory}/ca.pem",
    }
    assert found["uris"] == ["spiffe://bank.example/storage/s1"]
    assert found["hosts"] == ["db1.example", "::1"]
    assert found["used_as"] == ["server", "client"]
    remaining = datetime.fromisoformat(found["not_after"]) - datetime.now(UTC)
    assert timedelta(days=29) < remaining <= timedelta(days=30)
    serial = found["serial"]
    found = certs(directory, "renew", "s1", "--json").json
    assert found["serial"] != serial
    listed = certs(directory, "show", "--json").json
    assert [(each["file"], each["state"]) for each in listed] == [("ca", "valid"), ("s1", "valid")]
    (alone,) = certs(directory, "show", "s1", "--json").json
    assert alone["serial"] == found["serial"]


def test_a_uri_of_one_s_own_takes_the_place_of_the_default(tmp_path: Path) -> None:
    directory = made(tmp_path / "ca")
    uri = "spiffe://prod.example/ns/orders"
    found = certs(directory, "issue", "orders", "--for", "client", "--uri", uri, "--json").json
    assert (found["uris"], found["used_as"]) == ([uri], ["client"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s1", "--for", "storage"), "--host is missing"),
        (("s1", "--for", "client", "--host", "a"), "a client is not connected to"),
        (("s1", "--for", "server", "--host", "0.0.0.0"), "not an address to connect to"),
        (("s1", "--for", "server", "--host", "*.example"), "no name of one machine"),
        (("s1", "--for", "server", "--host", "10.0.0"), "no name of one machine"),
        (("s1", "--for", "server", "--host", "a..b"), "no name of one machine"),
        (("s1", "--for", "server", "--host", "fe80::1%eth0"), "not an address to connect to"),
        (("s1", "--for", "client", "--uri", "prod/orders"), "expected scheme://"),
        (("s1", "--for", "client", "--uri", "a://ä"), "expected scheme://"),
        (("s1", "--for", "client", "--days", "0"), "0 is not in the range"),
        (("s1", "--for", "client", "--days", "5000"), "would outlast it"),
        (("../s1", "--for", "client"), "cannot be the name of a certificate"),
    ],
)
def test_what_would_not_work_is_not_issued(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    directory = made(tmp_path / "ca")
    found = certs(directory, "issue", *arguments)
    assert (found.code > 0, said in found.err) == (True, True), found.err
    assert certs(directory, "show", "--json").json[1:] == []


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    directory = made(tmp_path / "ca")
    certs(directory, "issue", "me", "--for", "client")
    assert certs(directory, "init").code == 1
    assert certs(directory, "issue", "me", "--for", "client").code == 1


def test_the_authority_is_renewed_with_its_key_only(tmp_path: Path) -> None:
    directory = made(tmp_path / "ca")
    certs(directory, "issue", "me", "--for", "client")
    assert "a CA with a new key is a new CA" in certs(directory, "renew", "ca", "--new-key").err
    before = certs(directory, "show", "ca", "--json").json
    assert certs(directory, "renew", "ca", "--days", "4000").code == 0
    assert certs(directory, "show", "ca", "--json").json != before
    assert [each["state"] for each in certs(directory, "show", "--json").json] == ["valid"] * 2


def test_show_says_what_has_expired_and_what_is_another_s(tmp_path: Path) -> None:
    directory, other = made(tmp_path / "ca"), made(tmp_path / "other")
    expired(directory, "old")
    certs(other, "issue", "alien", "--for", "client")
    (other / "alien.pem").rename(directory / "alien.pem")
    states = {each["file"]: each["state"] for each in certs(directory, "show", "--json").json}
    assert states == {"ca": "valid", "old": "expired", "alien": "of another CA"}
    assert "expired" in certs(directory, "show").out


def test_show_does_not_call_valid_what_outlasts_its_ca(tmp_path: Path) -> None:
    """The CA was renewed for fewer days than it had left, and these are over."""
    directory = made(tmp_path / "ca")
    certs(directory, "issue", "me", "--for", "client")
    year_ago = datetime.now(UTC) - timedelta(days=365)
    CertificateDirectory(directory).renew_authority(now=year_ago, days=1)
    states = {each["file"]: each["state"] for each in certs(directory, "show", "--json").json}
    assert states == {"ca": "expired", "me": "its CA has expired"}


def expired(directory: Path, name: str) -> None:
    """Issue a client's certificate that was valid for a day, a year ago."""
    identity = Identity(name, (), f"spiffe://waltz/client/{name}", accepts=False)
    year_ago = datetime.now(UTC) - timedelta(days=365)
    CertificateDirectory(directory).issue(identity, now=year_ago, days=1)


@pytest.fixture(scope="module")
def secured(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatedCluster]:
    """A storage node and a server with certificates of a CA, as its `certs` directory has them."""
    directory = tmp_path_factory.mktemp("secured") / "certificates"
    with operated_cluster(directory, operators_zookeeper) as cluster:
        files = made(directory / "certs")
        cluster.done("cluster", "create", "--name", "secured", "--partitions", "1")
        cluster.add_storage("s1", 0)
        cluster.done("cluster", "auto-assign", "-g", "0")
        (port,) = choose_ports("127.0.0.1", 0, 1)
        cluster.servers["v1"] = f"127.0.0.1:{port}"
        place = cluster.storages["s1"]
        storage = configured(files, "s1", "storage")
        storage |= {"storage.directory": str(place.directory), "storage.diskFreeMin": "1MiB"}
        start(cluster, "s1", "storage", storage, place.address, "--admin-address", place.admin)
        certs(files, "issue", "me", "--for", "client")
        cluster.done("admin storage", "sync-partitions", *options(files, "me"))
        start(cluster, "v1", "server", configured(files, "v1", "server"), cluster.servers["v1"])
        yield cluster


def configured(files: Path, name: str, holder: str) -> dict[str, str]:
    """Issue a certificate, and return the keys that the command says are to be set."""
    issued = certs(files, "issue", name, "--for", holder, "--host", "127.0.0.1", "--json").json
    settings: dict[str, str] = issued["settings"]
    return settings


def start(
    cluster: OperatedCluster,
    name: str,
    kind: str,
    settings: dict[str, str],
    address: str,
    *more: str,
) -> None:
    path = cluster.directory / f"{name}.yml"
    path.write_text(json.dumps(settings))
    where = ("--coordinator", cluster.coordinator, "--address", address)
    cluster.run(name, kind, str(path), *where, *more)


def options(files: Path, name: str, authorities: Path | None = None) -> list[str]:
    trusted = authorities or files / "ca.pem"
    return ["--tls-ca", str(trusted), "--tls-cert", str(files / f"{name}.pem")]


def shown_serial(address: str, files: Path) -> str:
    """Return the serial number that a server shows to a strict client of Python's."""
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(files / "me.pem")
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=host) as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"]).lower().lstrip("0")


@pytest.mark.processes
def test_processes_with_these_files_believe_each_other_and_nobody_else(
    secured: OperatedCluster, tmp_path: Path
) -> None:
    """TS-01, TS-02."""
    files = secured.directory / "certs"
    where = ("append", "--cluster", f"waltz://{secured.servers['v1']}", "--partition", "0")
    done = run_waltz(*where, *options(files, "me"), "eins")
    assert done.returncode == 0, done.stderr

    other = made(tmp_path / "other")
    certs(other, "issue", "stranger", "--for", "client")
    refused = run_waltz(*where, *options(other, "stranger"), "zwei")
    assert "signed by none of the CAs in" in refused.stderr
    refused = run_waltz(*where, *options(other, "stranger", files / "ca.pem"), "zwei")
    assert "it does not trust this side's certificate" in refused.stderr
    assert "signed by none of the CAs in" in (secured.directory / "v1.log").read_text()

    expired(files, "old")
    refused = run_waltz(*where, *options(files, "old"), "zwei")
    assert "this side's certificate has expired" in refused.stderr
    assert refused.returncode == 1


@pytest.mark.processes
def test_a_running_server_takes_a_renewed_certificate_and_keeps_its_connections(
    secured: OperatedCluster,
) -> None:
    """TS-07."""
    files, address = secured.directory / "certs", secured.servers["v1"]
    tls = TlsSettings(str(files / "me.pem"), authorities=str(files / "ca.pem"))
    with waltz.open_client(f"waltz://{address}", waltz.NoCallbacks(), tls=tls) as client:
        first = client.append(0, b"before")
        before = shown_serial(address, files)
        found = certs(files, "renew", "v1", "--json").json
        assert found["serial"] != before
        wait_until(
            lambda: shown_serial(address, files) == found["serial"],
            "the server shows the old certificate",
        )
        assert client.append(0, b"after") > first
    assert "tls_files_read_again" in (secured.directory / "v1.log").read_text()
    assert not secured.processes["v1"].poll()
