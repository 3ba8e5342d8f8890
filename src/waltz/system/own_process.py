"""The words by which this process is known to operators: its program, and which process it is."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import PurePath
from typing import Final

PROCESS_WORD_CHARACTERS_MAX: Final = 100
"""Characters of such a word; a longer one is cut."""

PYTHON: Final = "python"
"""The program of a process that runs no file."""


def own_program() -> str:
    """Return the file name of the program as `sys.argv` has it, `PYTHON` where there is none."""
    name = _printed(PurePath(sys.argv[0]).name) if sys.argv else ""
    return PYTHON if name in ("", ".", "..", "-", "-c", "-m") else name


def own_instance() -> str:
    """Return the host name and the process ID."""
    process_id = f":{os.getpid()}"
    return _printed(socket.gethostname(), len(process_id)) + process_id


def _printed(text: str, left: int = 0) -> str:
    """Return `text` with ? for what cannot be printed, cut so that `left` characters have room."""
    cut = text[: PROCESS_WORD_CHARACTERS_MAX - left]
    return "".join(each if each.isprintable() else "?" for each in cut).strip()
