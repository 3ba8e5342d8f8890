"""The HTTP port of each kind of process, with TLS and tokens, by the real commands."""

from __future__ import annotations

import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.clusters import RunningCluster, run_tool, running_cluster, start_node
from tests.http_asking import ask
from tests.shares import one_in
from tests.tls_files import TlsFiles
from waltz.attest.notes import KeyKind, SecretKey
from waltz.cli.http_options import http_options, refuse_unsafe_tokens
from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConfigurationError
from waltz.types import Address, HttpAccess, TlsSettings


class Protected:
    """A cluster, and what the HTTP ports next to it are protected by."""

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.files = TlsFiles(directory)
        self.certificate = self.files.issue("http", "127.0.0.1")
        made = run_tool("policy", "token", "scraper", "--json").json
        self.token = made["token"]
        self.tokens = directory / "tokens.yaml"
        self.tokens.write_text(f"{made['line']}\n")
        self.ports = iter(choose_ports("127.0.0.1", 0, 16))

    def keys(self) -> str:
        return f"http.tls.keyStore.location: {self.certificate}\nhttp.tokens: {self.tokens}\n"

    def options(self) -> list[str]:
        return ["--http-tls-cert", self.certificate, "--http-tokens", str(self.tokens)]

    def config(self, name: str, text: str) -> str:
        path = self.directory / f"{name}.yml"
        path.write_text(f"coordinator.address: {self.cluster.coordinator}\n{self.keys()}{text}")
        return str(path)

    def server(self, http: int) -> list[str]:
        text = f"server: {{port: {next(self.ports)}, jetty.port: {http}}}\n"
        return ["server", self.config("server", text)]

    def storage(self, http: int) -> list[str]:
        place = self.directory / "storage"
        place.mkdir()
        text = (
            f"storage: {{port: {next(self.ports)}, admin.port: {next(self.ports)},"
            f" jetty.port: {http}, directory: {place}, diskFreeMin: 1MiB}}\n"
        )
        return ["storage", self.config("storage", text)]

    def archiver(self, http: int) -> list[str]:
        target = (self.directory / "archive").as_uri()
        text = f"archive: {{target: '{target}', httpAddress: '127.0.0.1:{http}'}}\n"
        return ["archive", "run", self.config("archive", text)]

    def relay(self, http: int) -> list[str]:
        path = self.directory / "outbox.yml"
        path.write_text(
            f"outbox: {{cluster: '{self.cluster.coordinator}', httpAddress: '127.0.0.1:{http}',"
            f" database: 'sqlite:///{self.directory / 'app.db'}'}}\n{self.keys()}"
        )
        return ["outbox", "run", str(path)]

    def bridge(self, http: int) -> list[str]:
        path = self.directory / "bridge.yml"
        (self.directory / "secret").write_text("0123456789abcdef")
        path.write_text(
            f"bridge: {{cluster: '{self.cluster.coordinator}', httpAddress: '127.0.0.1:{http}',"
            f" url: 'http://localhost:1/', secretFile: '{self.directory / 'secret'}',"
            f" progress: '{self.directory / 'progress'}'}}\n{self.keys()}"
        )
        return ["bridge", "http", str(path)]

    def console(self, http: int) -> list[str]:
        place = ["--cluster", self.cluster.coordinator, "--http", f"127.0.0.1:{http}"]
        return ["console", *place, *self.options()]

    def witness(self, http: int) -> list[str]:
        key = SecretKey.generate("witness.example/w", KeyKind.WITNESS)
        (self.directory / "key").write_text(key.secret_text())
        log = SecretKey.generate("log.example/l", KeyKind.LOG)
        (self.directory / "log.key").write_text(str(log.public_key))
        return [
            *("witness", "--http", f"127.0.0.1:{http}", "--key", str(self.directory / "key")),
            *("--log", str(self.directory / "log.key")),
            *("--memory", str(self.directory / "memory"), *self.options()[:2]),
        ]


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    directory = tmp_path_factory.mktemp("protected-http")
    with running_cluster(directory / "protected-http", "--partitions", "2") as cluster:
        yield Protected(cluster, directory)


@contextmanager
def running(arguments: list[str], log: Path) -> Iterator[None]:
    with log.open("a") as errors:
        process = start_node(*arguments, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", log.read_text()
        yield
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()


KINDS: dict[str, Callable[[Protected, int], list[str]]] = {
    "server": Protected.server,
    "storage": Protected.storage,
    "archiver": Protected.archiver,
    "relay": Protected.relay,
    "bridge": Protected.bridge,
    "console": Protected.console,
    "witness": Protected.witness,
}
PATHS = {"console": "/nodes", "witness": "/add-checkpoint"}
"""A path of each; that of the others is /metrics."""


@pytest.mark.processes
@pytest.mark.parametrize("kind", one_in(3, KINDS))
def test_every_process_speaks_tls_only_and_asks_for_a_token(
    protected: Protected, kind: str
) -> None:
    """A witness has no tokens, for its requests are signed."""
    http = next(protected.ports)
    address = Address("127.0.0.1", http)
    path = PATHS.get(kind, "/metrics")
    log = protected.directory / f"{kind}.log"
    trusted = protected.files.authorities
    shown = [("authorization", f"Bearer {protected.token}")]
    with running(KINDS[kind](protected, http), log):
        assert ask(address, path).status == 400, "plain"
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(address, path, authorities=TlsFiles(protected.directory).authorities)
        found = ask(address, path, shown, authorities=trusted)
        assert found.status == (405 if kind == "witness" else 200)
        if kind != "witness":
            assert ask(address, path, authorities=trusted).status == 401
        if kind not in PATHS:
            live = ask(address, "/live", authorities=trusted)
            assert (live.status, live.text) == (200, "OK\n")
    assert protected.token not in log.read_text()


@pytest.mark.processes
def test_a_process_without_these_settings_is_as_it_was(protected: Protected) -> None:
    http = next(protected.ports)
    arguments = protected.server(http)
    path = Path(arguments[-1])
    path.write_text(path.read_text().replace(protected.keys(), ""))
    with running(arguments, protected.directory / "plain.log"):
        metrics = ask(Address("127.0.0.1", http), "/metrics", [("accept", "text/plain")])
        assert metrics.status == 200
        assert "waltz_server_info" in metrics.text
        assert ask(Address("127.0.0.1", http), "/ping").text == "pong\n"


@pytest.mark.parametrize("command", ["server", "archive run", "outbox run", "bridge http"])
def test_a_check_reads_the_files_of_the_http_port(tmp_path: Path, command: str) -> None:
    path = tmp_path / "node.yml"
    path.write_text(
        "coordinator.address: 127.0.0.1:1\nserver: {port: 2, jetty.port: 3}\n"
        "archive.target: file:///tmp/archive\noutbox.cluster: 127.0.0.1:1\n"
        "bridge: {cluster: '127.0.0.1:1', url: 'http://localhost/', secretFile: s, progress: p}\n"
        f"http.tokens: {tmp_path / 'none.yaml'}\n"
    )
    said = run_tool(*command.split(), str(path), "--check")
    assert said.code == 1
    assert "none.yaml: No such file" in said.err


@click.command()
@http_options()
def shown(http_access: HttpAccess) -> None:
    click.echo(repr(http_access))


def test_options_and_environment_say_the_same() -> None:
    runner = CliRunner()
    said = runner.invoke(shown, ["--http-tls-cert", "c.pem", "--http-tokens", "t.yaml"])
    environment = {"WALTZ_HTTP_TLS_CERT": "c.pem", "WALTZ_HTTP_TOKENS": "t.yaml"}
    assert said.output == runner.invoke(shown, env=environment).output
    assert said.output == f"{HttpAccess(TlsSettings('c.pem'), 't.yaml')!r}\n"
    assert runner.invoke(shown, []).output == f"{HttpAccess()!r}\n"
    refused = runner.invoke(shown, ["--http-tls-ca", "ca.pem"])
    assert (refused.exit_code, "need --http-tls-cert" in refused.output) == (2, True)


def test_tokens_are_not_sent_in_plain_to_where_others_read_along() -> None:
    access = HttpAccess(tokens="tokens.yaml")
    refuse_unsafe_tokens(Address("127.0.0.1", 1), access)
    refuse_unsafe_tokens(Address("localhost", 1), access)
    refuse_unsafe_tokens(Address("0.0.0.0", 1), HttpAccess(TlsSettings("c.pem"), "tokens.yaml"))
    refuse_unsafe_tokens(Address("0.0.0.0", 1), HttpAccess())
    with pytest.raises(ConfigurationError, match=r"--http-tokens is set, and HTTP at 0\.0"):
        refuse_unsafe_tokens(Address("0.0.0.0", 1), access)
