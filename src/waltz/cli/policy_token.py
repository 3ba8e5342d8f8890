"""`waltz policy token`: a new bearer token, and the line that makes it known."""

from __future__ import annotations

import secrets

import click

from waltz.bearer_tokens import (
    NAME_CHARACTERS_MAX,
    TOKEN_BYTES,
    is_token_name,
    line_of,
    token_of,
)
from waltz.cli.output import json_option, print_json
from waltz.errors import ConfigurationError


@click.command()
@click.argument("name")
@json_option
def token(name: str, as_json: bool) -> None:
    """Make a bearer token for NAME, and the line for the file of tokens.

    The token is shown once, and is kept nowhere: the line has its hash only, from which nobody
    finds it. Give the token to its user, and append the line to the file that `http.tokens` names.
    """
    if not is_token_name(name):
        raise ConfigurationError(
            f"{name[:80]!r} is no name of a token; expected 1 to {NAME_CHARACTERS_MAX} letters,"
            " digits, dots, dashes and underscores that begin with a letter or digit"
        )
    made = token_of(secrets.token_bytes(TOKEN_BYTES))
    line = line_of(name, made)
    if as_json:
        print_json({"name": name, "token": made, "line": line})
        return
    click.echo(made)
    click.echo("The token is above, and will not be shown again. The line for the file:", err=True)
    click.echo(line)
