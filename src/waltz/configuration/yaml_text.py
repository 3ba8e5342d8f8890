"""Reads the text of a configuration file: YAML with dotted or nested keys.

Owns how keys are found in the text. Knows no key by name, and opens no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import yaml

from waltz.configuration.settings import Given
from waltz.errors import ConfigurationError
from waltz.plain_yaml import PlainLoader

CONFIGURATION_BYTES_MAX: Final = 1024 * 1024
"""Characters of a configuration file."""

CONFIGURATION_DEPTH_MAX: Final = 16
"""Levels of nested keys in a configuration file."""


def read_yaml(content: str, path: str) -> dict[str, Given]:
    """Return the values that the file at `path` sets, by dotted name.

    `a.b: 1`, `a: {b: 1}` and any mixture mean the same. A key without a value is not set.
    Raises ConfigurationError: not YAML, not a mapping, or a key twice.
    """
    if len(content) > CONFIGURATION_BYTES_MAX:
        raise ConfigurationError(
            f"{path} is {len(content)} characters long; expected a configuration file of at most"
            f" {CONFIGURATION_BYTES_MAX}"
        )
    try:
        # A subclass of the safe loader: only plain values come out of it.
        root = yaml.load(content, Loader=PlainLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        # The mark's own text would quote the line, which may contain a password.
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigurationError(f"{path}{where}: {error.problem or 'not YAML'}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply") from None
    except yaml.YAMLError:
        raise ConfigurationError(
            f"{path} is not YAML: it contains characters that YAML does not allow"
        ) from None
    if root is None:
        return {}
    if not isinstance(root, dict):
        raise ConfigurationError(f"{path} holds a {type(root).__name__}; expected keys and values")
    given: dict[str, Given] = {}
    for name, value in _flat(root, "", path, 0):
        if name in given:
            raise ConfigurationError(
                f"{path} sets {name} twice, once dotted and once nested; keep one"
            )
        if value is not None:
            given[name] = Given(value, path)
    return given


def _flat(
    mapping: Mapping[object, object], prefix: str, path: str, depth: int
) -> Iterator[tuple[str, object]]:
    if depth >= CONFIGURATION_DEPTH_MAX:
        raise ConfigurationError(f"{path}: keys below {prefix} are nested too deeply")
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"{path}: a key is {key!r}; expected text below {prefix!r}")
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.", path, depth + 1)
        else:
            yield f"{prefix}{key}", value
