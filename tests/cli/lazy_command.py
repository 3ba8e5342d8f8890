"""A command for the tests of groups that import their commands late."""

from __future__ import annotations

import click


@click.command()
@click.option("--name", default="you")
def hello(name: str) -> None:
    """Say hello."""
    click.echo(f"hello, {name}")
