"""The roles of the Java original: `python -m tests.rolling.original_roles storage|server ...`.

A storage node is played by `golden_storage`, which shares no code with ours. Nothing here can play
a server of the original: its server is our own, which speaks to clients up to version 4 and to
storage nodes version 0 only, as the original's does; how it recovers partitions, and what it
writes into the coordinator, is ours.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from tests.rolling import golden_storage
from waltz.cli import server_node
from waltz.cli.commands import waltz
from waltz.server.server_shell import ServerConfig

CLIENT_VERSION: Final = 4
STORAGE_VERSION: Final = 0
"""The newest versions that the original knows."""


def main(role: str, *arguments: str) -> None:
    if role == "storage":
        golden_storage.main(list(arguments))
        return
    plain = server_node.server_config

    def original_config(*given: Any) -> ServerConfig:
        return replace(
            plain(*given),
            protocol_version_max=CLIENT_VERSION,
            storage_protocol_version_max=STORAGE_VERSION,
        )

    vars(server_node)["server_config"] = original_config
    waltz([role, *arguments], standalone_mode=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
