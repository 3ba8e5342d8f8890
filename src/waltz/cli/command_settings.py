"""A process's settings: the keys of its file, overridden by the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from waltz.configuration.coordinator_settings import COORDINATOR_ADDRESS
from waltz.configuration.keys import Key
from waltz.configuration.settings import Given, Settings
from waltz.errors import ConfigurationError
from waltz.types import Address


def read_settings(
    path: str | None,
    options: dict[str, Given],
    keys: Sequence[Key[Any]],
    judged: Callable[[Mapping[str, Given]], Settings],
) -> Settings:
    """Return the settings of the file at `path`, overridden by the options.

    Raises ConfigurationError; click.UsageError: there is no file and the options are too few.
    """
    given: dict[str, Given] = {}
    if path is not None:
        # Most calls name no file, and need no YAML.
        from waltz.configuration.yaml_text import read_yaml

        try:
            given = read_yaml(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the configuration {path}: {error.strerror}"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is not text in UTF-8: {error.reason}") from error
    else:
        # Of the two ways to the coordinator only one has an option.
        needed = [key for key in keys if key.required or key.name == COORDINATOR_ADDRESS.name]
        missing = [key for key in needed if key.name not in options]
        if missing:
            names = dict.fromkeys(key.option for key in missing)
            raise click.UsageError(
                f"missing: {', '.join(names)}; or give a CONFIG_PATH with"
                f" {', '.join(key.name for key in missing)}",
                click.get_current_context(silent=True),
            )
    return judged(given | options)


def given_options(
    addresses: Sequence[tuple[str, Key[str], Key[int], Address | None]],
    values: Mapping[str, tuple[Key[Any], object]],
) -> dict[str, Given]:
    """Return the options that were given as keys; an address sets two of them."""
    given = {}
    for option, host_key, port_key, address in addresses:
        if address is not None:
            given[host_key.name] = Given(address.host, option)
            given[port_key.name] = Given(address.port, option)
    for option, (key, value) in values.items():
        if value is not None:
            given[key.name] = Given(value, option)
    return given


def print_settings(settings: Settings) -> None:
    """Print the settings that would be in force, for `--check`."""
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    for line in settings.lines():
        click.echo(line)
