"""The `waltz` command: its exit codes, and how errors are shown.

Exit codes: 0 done, 1 it failed and says why, 2 it was called wrongly, 130 stopped by Ctrl-C,
141 nobody reads the output any more, as behind `head`; `waltz bench` also 143 and 129, ended by
SIGTERM and SIGHUP.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final, NoReturn

COLLECT_AFTER: Final = (50_000, 20, 100)
"""The thresholds of the garbage collector: net allocations before it looks for cycles among new
objects, and how often it looks before it looks at older ones."""


def main() -> NoReturn:
    """Run the command line; show an error as one line and leave the traceback to bugs."""
    if not __debug__:
        sys.exit("waltz: refusing to run under python -O: its assertions guard the log")
    # numpy starts a thread per processor for matrix products, which costs more than its import;
    # nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # Ctrl-C while modules are imported ends the command like Ctrl-C at any other time.
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def run() -> None:
    """Run one command. Raises SystemExit: it did not end well."""
    import click

    from waltz.cli.commands import waltz
    from waltz.errors import WaltzError

    # The garbage of a batch is hardly ever in a cycle: a collector that runs every few batches
    # takes a quarter of a busy server's time, and a twentieth of any command's imports.
    gc.set_threshold(*COLLECT_AFTER)

    try:
        waltz.main(prog_name="waltz", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except WaltzError as error:
        sys.exit(f"waltz: {error}")


if __name__ == "__main__":
    main()
