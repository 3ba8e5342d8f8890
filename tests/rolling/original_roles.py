"""The roles of the Java original: `python -m tests.rolling.original_roles storage|server ...`.

Both are played by programs that share no code with ours: a storage node by `golden_storage`, a
server by `golden_server`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from tests.rolling import golden_server, golden_storage

ROLES: Final[Mapping[str, Callable[[list[str]], None]]] = {
    "server": golden_server.main,
    "storage": golden_storage.main,
}


if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2:])
