"""The options that secure a command's connections."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from waltz.cli.tls_options import tls_options
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
