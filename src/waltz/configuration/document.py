"""The page of keys for operators, printed from their declarations.

    python -m waltz.configuration.document > docs/operating/storage-configuration.md

Owns the words around the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from waltz.configuration.keys import Key
from waltz.configuration.storage import NO_GRAPHITE, NO_ZOOKEEPER, STORAGE_KEYS
from waltz.configuration.tls import JAVA_ONLY, PEM_HAS_NO_PASSWORD

EXAMPLE = """\
storage.directory: /var/lib/waltz/storage
coordinator.address: coordinator.example:7100
storage:
  port: 7201
  bindAddress: 10.0.0.11
  admin.port: 7202
  jetty.port: 7203
"""


def storage_page() -> str:
    """Return the whole text of `docs/operating/storage-configuration.md`."""
    served = [key for key in STORAGE_KEYS if not key.unused]
    return f"""\
# Configuration of a storage node

Printed by `python -m waltz.configuration.document`; a test compares this file with the code.

    waltz storage [options] [CONFIG_PATH]

The file is YAML. Keys are dotted, nested, or both; the names that Java Waltz has mean the same
here. An option of the command line overrides the file. `--check` judges all of it, prints what
would be in force, and ends.

```yaml
{EXAMPLE}```

A wrong type or range, a missing key, a key that is there twice, and one port for two purposes keep
the node from starting; every fault is named, and no password is printed. A key that is not known is
reported with the nearest one that is, and ignored.

{_table(served)}

## Keys of the original that this release does not serve

{_unserved()}
"""


def _table(keys: Iterable[Key[Any]]) -> str:
    lines = ["| Key | Value | Default | Option | Meaning |", "|---|---|---|---|---|"]
    for key in keys:
        default = "**required**" if key.required else key.shown_default or "none"
        option = f"`{key.option}`" if key.option else ""
        lines.append(
            f"| `{key.name}` | {key.kind.expectation} | {default} | {option} | {key.description} |"
        )
    return "\n".join(lines)


def _unserved() -> str:
    lines = ["| Keys | What happens | Why |", "|---|---|---|"]
    for reason, happens in (
        (NO_ZOOKEEPER, "without `coordinator.address` refuses to start, else a warning"),
        (NO_GRAPHITE, "a warning"),
        (JAVA_ONLY, "a warning"),
        (PEM_HAS_NO_PASSWORD, "a warning"),
    ):
        names = [f"`{key.name}`" for key in STORAGE_KEYS if reason == key.unused]
        lines.append(f"| {', '.join(names)} | {happens} | {reason} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(storage_page())
