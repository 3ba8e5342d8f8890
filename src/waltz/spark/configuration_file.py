"""The cluster's address and its TLS settings, from the file that the command-line tools take."""

from __future__ import annotations

from pathlib import Path

from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.tls_settings import tls_settings
from waltz.configuration.tools_settings import TLS, tool_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION
from waltz.types import TlsSettings


def read_configuration_file(path: str) -> tuple[str, TlsSettings]:
    """Return the coordinator's address and the TLS files that the file names.

    Read where Spark plans; tasks get the result. Raises ConfigurationError.
    """
    try:
        settings = tool_settings(read_yaml(Path(path).read_text(encoding="utf-8"), path))
        return str(coordinator_address(settings)), tls_settings(settings, TLS, listens=False)
    except (OSError, UnicodeDecodeError, ConfigurationError) as error:
        raise ConfigurationError(f"{INVALID_OPTION} option configFile: {error}") from error
