"""Which cluster a command is for: options, a file, the environment, the directory here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.trial_directory import (
    TLS_DIRECTORY,
    plan_cluster,
    write_cluster_file,
)
from waltz.errors import ConfigurationError, NoNodeError
from waltz.host import Host
from waltz.types import Address, TlsSettings, ZooKeeperAddress

FOUND: list[ClusterPlace] = []


@click.command()
@cluster_options
def show(place: ClusterPlace) -> None:
    FOUND[:] = [place]


def ask(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(show, arguments, env={"WALTZ_CLUSTER": None, **environment})


def place(*arguments: str, **environment: str) -> ClusterPlace:
    done = ask(*arguments, **environment)
    assert done.exit_code == 0, (done.output, done.exception)
    return FOUND[0]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("prefix", ["", "zookeeper://"])
def test_options_name_either_kind_of_coordinator(prefix: str) -> None:
    """CF-70, CF-73, CM-05"""
    found = place("--zookeeper", f"{prefix}a:1,b/root/of?sessionTimeout=70")
    expected = ZooKeeperAddress((Address("a", 1), Address("b", 2181)), "/root/of", 70)
    assert (found.coordinator, found.root) == (expected, "/root/of")
    assert place("--zookeeper", "a:1").root == "/waltz"
    assert place("--cluster", "a:1").coordinator == Address("a", 1)
    assert place("--cluster", "a:1", WALTZ_CLUSTER="b:1").coordinator == Address("a", 1)
    assert place(WALTZ_CLUSTER="zookeeper://b:1/x").root == "/x"


def test_a_file_says_it_and_the_tls_options_override_its_tls(tmp_path: Path) -> None:
    """CF-70 to CF-73, TL-01"""
    config = tmp_path / "tool.yml"
    config.write_text(
        "zookeeper: {connectString: 'a:1/chroot', sessionTimeout: 5000, connectTimeout: 1500}\n"
        "cluster.root: /x\n"
        "ssl.trustStore.location: file.pem\n"
        "server.port: 1\n"
    )
    for option in ("-c", "--cli-config-path"):
        found = place(option, str(config), WALTZ_CLUSTER="b:1")
        assert found == ClusterPlace(
            ZooKeeperAddress((Address("a", 1),), "/chroot/x", 5000),
            TlsSettings(authorities="file.pem"),
            1.5,
        )
    found = place("-c", str(config), "--tls-ca", "option.pem")
    assert found.tls == TlsSettings(authorities="option.pem")
    assert "warning: server.port" in ask("-c", str(config)).stderr


def test_two_places_are_one_too_many() -> None:
    done = ask("--cluster", "a:1", "--zookeeper", "b:1")
    assert (done.exit_code, "exclude each other" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("--zookeeper", "a:b"), {}, "not an address: 'a:b'"),
        (("--cluster", "a"), {}, "not an address: 'a'"),
        ((), {"WALTZ_CLUSTER": "a"}, "WALTZ_CLUSTER: not an address: 'a'"),
    ],
)
def test_what_is_no_address_is_a_wrong_call(
    arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    done = ask(*arguments, **environment)
    assert (done.exit_code, said in done.output) == (2, True)


def test_the_directory_here_is_the_last_that_is_looked_at(tmp_path: Path) -> None:
    done = ask()
    assert isinstance(done.exception, ConfigurationError)
    for remedy in ("--cluster", "--zookeeper", "-c FILE", "WALTZ_CLUSTER", "waltz-data"):
        assert remedy in str(done.exception)
    directory = tmp_path / "waltz-data"
    directory.mkdir()
    cluster = plan_cluster(
        name="c", cluster_key="k", host="127.0.0.1", port=0, servers=1, partitions=1
    )
    write_cluster_file(directory, cluster, ready=True, processes=[])
    assert place() == ClusterPlace(cluster.coordinator, TlsSettings())
    cluster = replace(cluster, speaks_tls=True)
    write_cluster_file(directory, cluster, ready=True, processes=[])
    assert place().tls.authorities == str(Path("waltz-data") / TLS_DIRECTORY / "ca.pem")
    assert place("--tls-ca", "own.pem").tls == TlsSettings(authorities="own.pem")


def test_a_file_that_cannot_be_read_is_named() -> None:
    done = ask("-c", "nowhere.yml")
    assert isinstance(done.exception, ConfigurationError)
    assert "cannot read the configuration nowhere.yml" in str(done.exception)


def test_the_coordinator_s_session_ends_with_the_work() -> None:
    doors: list[Host] = []

    async def work(host: Host, root: str) -> str:
        doors.append(host)
        raise NoNodeError(root)

    with pytest.raises(NoNodeError, match="/x"):
        ClusterPlace(ZooKeeperAddress((Address("127.0.0.1", 1),), "/x"), TlsSettings()).run(work)
    assert doors
    assert doors[0].coordinator._closed  # type: ignore[attr-defined]
