"""How the tests call `waltz disk`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from waltz.cli.commands import waltz


def run_disk(command: str, *arguments: str | Path) -> Result:
    """Run the command in this process, to its end."""
    result = CliRunner().invoke(waltz, ["disk", command, *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
