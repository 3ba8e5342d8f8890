"""The options that secure a command's connections."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.tls_files import TlsFiles
from waltz.bearer_tokens import token_of
from waltz.cli.tls_options import secured_by_file, tls_options
from waltz.errors import ConfigurationError
from waltz.system.real_host import real_host
from waltz.types import TlsSettings


@click.command()
@tls_options
@click.argument("word")
def show(word: str, tls: TlsSettings) -> None:
    click.echo(f"{word} {tls}")


def test_without_options_nothing_is_configured() -> None:
    assert CliRunner().invoke(show, ["go"]).output == f"go {TlsSettings()}\n"


def test_options_and_environment_name_the_files() -> None:
    expected = TlsSettings("own.pem", "own.key", authorities="ca.pem")
    done = CliRunner().invoke(
        show,
        ["go", "--tls-ca", "ca.pem", "--tls-cert", "own.pem"],
        env={"WALTZ_TLS_KEY": "own.key", "WALTZ_TLS_CERT": "other.pem"},
    )
    assert done.output == f"go {expected}\n"


@pytest.mark.parametrize("given", [["--tls-cert", "a.pem"], ["--tls-ca", "a", "--tls-key", "a"]])
def test_half_of_them_is_a_wrong_call(given: list[str]) -> None:
    """TS-03."""
    done = CliRunner().invoke(show, ["go", *given])
    assert (done.exit_code, "--tls-cert needs --tls-ca" in done.output) == (2, True)


def test_a_server_s_file_secures_the_connections_of_a_tool(tmp_path: Path) -> None:
    """TS-06: what else it says does not count, not even what no server would start with."""
    files, host = TlsFiles(tmp_path), real_host(None)
    path = tmp_path / "server.yml"
    path.write_text(f"server.port: none\nserver.ssl.trustStore.location: {files.authorities}\n")
    assert secured_by_file(None)(host) is host
    secured = secured_by_file(str(path))(host)
    assert secured.network is not host.network
    assert secured.coordinator is host.coordinator


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("ssl.trustStore.location: ca.pem", "has no server.ssl.* keys"),
        ("server.ssl.trustStore.locatoin: ca.pem", "did you mean server.ssl.trustStore.location"),
        (
            "server.ssl.keyStore.location: own.pem",
            "this process would trust every peer that answers",
        ),
        ("server.ssl.trustStore.location: nowhere.pem", "nowhere.pem"),
    ],
)
def test_a_file_that_secures_nothing_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """TS-03"""
    path = tmp_path / "server.yml"
    path.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        secured_by_file(str(path))
    assert said in str(refused.value)


TOKEN = token_of(bytes(32))


@click.command()
@tls_options
def shown(tls: TlsSettings) -> None:
    click.echo(f"{tls.token} {tls.token_file}")


def test_a_token_comes_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    file = str(path)
    run = CliRunner().invoke
    ca = ["--tls-ca", "ca.pem"]
    assert run(shown, [*ca, "--token-file", file]).output == f"None {file}\n"
    assert run(shown, ca, env={"WALTZ_TOKEN_FILE": file}).output == f"None {file}\n"
    both = {"WALTZ_TOKEN_FILE": file, "WALTZ_TOKEN": TOKEN}
    assert run(shown, ca, env=both).output == f"None {file}\n"
    assert run(shown, ca, env={"WALTZ_TOKEN": TOKEN}).output == f"{TOKEN} None\n"
    assert run(shown, ca, env={"WALTZ_TOKEN": ""}).output == "None None\n"
    assert TOKEN not in run(show, ["go", *ca], env={"WALTZ_TOKEN": TOKEN}).output
    alone = run(shown, [], env={"WALTZ_TOKEN": TOKEN})
    assert (alone.exit_code, "a token needs --tls-ca" in alone.output) == (2, True)
    alone = run(shown, ["--token-file", file])
    assert (alone.exit_code, "a token needs --tls-ca" in alone.output) == (2, True)


@click.command()
@tls_options
def shown_sockets(tls: TlsSettings) -> None:
    click.echo(tls.local_sockets)
