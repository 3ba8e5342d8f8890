"""Serves a service with uvicorn until told to stop, or until the process that started it ends.

python -m examples.shop.trial.served examples.shop.orders:app PORT WORKERS
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread

import uvicorn


def stop_with_input() -> None:
    """Ask this process to stop once its standard input has ended."""
    while os.read(0, 1):  # not through sys.stdin, which the end of the interpreter would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    app, port, workers = sys.argv[1:]
    Thread(target=stop_with_input, daemon=True).start()
    uvicorn.run(
        app, host="127.0.0.1", port=int(port), workers=int(workers),
        access_log=False, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main()
