"""The `waltz` command: its groups, its exit codes, and how errors are shown.

Exit codes: 0 done, 1 it failed and says why, 2 it was called wrongly, 130 stopped by Ctrl-C;
`waltz bench` also 143 and 129, ended by SIGTERM and SIGHUP.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from waltz.cli.admin import admin
from waltz.cli.bench import bench
from waltz.cli.client import append, outcome, status, tail
from waltz.cli.cluster import cluster
from waltz.cli.disk import disk
from waltz.cli.nodes import installed_version
from waltz.cli.pipeline import pipeline
from waltz.cli.server_node import server
from waltz.cli.storage_node import storage
from waltz.cli.up import up
from waltz.errors import WaltzError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version(), prog_name="waltz")
def waltz() -> None:
    """Waltz: a replicated write-ahead log for transactions."""


for command in (
    up,
    status,
    append,
    outcome,
    tail,
    server,
    storage,
    cluster,
    admin,
    disk,
    pipeline,
    bench,
):
    waltz.add_command(command)


def main() -> NoReturn:
    """Run the command line; show an error as one line and leave the traceback to bugs."""
    if not __debug__:
        sys.exit("waltz: refusing to run under python -O: its assertions guard the log")
    try:
        waltz.main(prog_name="waltz", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except WaltzError as error:
        sys.exit(f"waltz: {error}")
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; that is no failure of ours.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
