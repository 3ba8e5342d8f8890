"""Callables of the user's own, which options name as `module:callable`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click


def named_callable(option: str, text: str) -> Any:
    """Return the callable that `text`, the value of `option`, names as `module:callable`; modules
    in the working directory count too.

    Raises click.BadParameter.
    """
    module_name, separator, name = text.partition(":")
    if not (separator and module_name and name):
        raise click.BadParameter(f"{option} {text!r}; expected module:callable")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{option} {text!r}: {error}") from error
    if not callable(found):
        raise click.BadParameter(f"{option} {text!r} cannot be called")
    return found
