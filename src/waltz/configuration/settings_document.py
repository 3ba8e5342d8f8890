"""The page of keys for operators, printed from their declarations.

    python -m waltz.configuration.settings_document NAME > docs/operating/NAME-configuration.md

NAME is `storage`, `server`, `archive` or `tools`.

Owns the words around the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from waltz.configuration.archive_settings import ARCHIVE_KEYS
from waltz.configuration.bridge_settings import BRIDGE_KEYS
from waltz.configuration.kafka_bridge_settings import KAFKA_BRIDGE_KEYS
from waltz.configuration.keys import Key
from waltz.configuration.outbox_settings import OUTBOX_KEYS
from waltz.configuration.server_settings import SERVER_KEYS
from waltz.configuration.storage_settings import STORAGE_KEYS
from waltz.configuration.tools_settings import TOOL_KEYS

EXAMPLE = """\
storage.directory: /var/lib/waltz/storage
coordinator.address: coordinator.example:7100
storage:
  port: 7201
  bindAddress: 10.0.0.11
  admin.port: 7202
  jetty.port: 7203
"""


SERVER_EXAMPLE = """\
coordinator.address: coordinator.example:7100
server:
  port: 7300
  bindAddress: 0.0.0.0
  advertisedAddress: waltz-1.example:7300
  jetty.port: 7301
"""


def storage_page() -> str:
    """Return the whole text of `docs/operating/storage-configuration.md`."""
    return _page("storage", "a storage node", EXAMPLE, STORAGE_KEYS)


def server_page() -> str:
    """Return the whole text of `docs/operating/server-configuration.md`."""
    return _page("server", "a server", SERVER_EXAMPLE, SERVER_KEYS)


ARCHIVE_EXAMPLE = """\
archive:
  target: s3://waltz-archive/prod
  every: 10
  verifyReplicas: 1
coordinator.address: coordinator.example:7100
"""


def archive_page() -> str:
    """Return the whole text of `docs/operating/archive-configuration.md`."""
    return f"""\
# Configuration of an archive

Printed by `python -m waltz.configuration.settings_document archive`; a test compares this file with
the code.

    waltz archive run|status|verify|repair FILE

The file is YAML. Keys are dotted, nested, or both. `waltz archive run --check FILE` judges all of
it, prints what would be in force, and ends. How archives work: [archive.md](archive.md).

```yaml
{ARCHIVE_EXAMPLE}```

{_table(key for key in ARCHIVE_KEYS if not key.unused)}

## Keys of the original that this release does not serve

{_unserved(ARCHIVE_KEYS)}
"""


OUTBOX_EXAMPLE = """\
outbox:
  cluster: waltz://waltz-1.example:7300,waltz-2.example:7300
  table: waltz_outbox
  httpAddress: 0.0.0.0:7400
"""


def outbox_page() -> str:
    """Return the whole text of `docs/operating/outbox-configuration.md`."""
    return f"""\
# Configuration of an outbox

Printed by `python -m waltz.configuration.settings_document outbox`; a test compares this file with
the code.

    waltz outbox run|status|parked|retry|drop FILE

The file is YAML. Keys are dotted, nested, or both. `waltz outbox run --check FILE` judges all of
it, prints what would be in force, and ends. How an outbox works: [outbox.md](../outbox.md).

```yaml
{OUTBOX_EXAMPLE}```

{_table(OUTBOX_KEYS)}
"""


BRIDGE_EXAMPLE = """\
bridge:
  cluster: waltz://waltz-1.example:7300,waltz-2.example:7300
  url: https://hooks.example/waltz
  secretFile: /etc/waltz/hook.secret
  progress: /var/lib/waltz/hook.json
  httpAddress: 0.0.0.0:7401
"""


KAFKA_BRIDGE_EXAMPLE = """\
bridge:
  cluster: waltz://waltz-1.example:7300,waltz-2.example:7300
  httpAddress: 0.0.0.0:7402
  kafka:
    servers: kafka-1.example:9093,kafka-2.example:9093
    topic: orders
    name: orders
    security.protocol: sasl_ssl
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: waltz
    sasl.passwordFile: /etc/waltz/kafka.password
"""


def bridge_page() -> str:
    """Return the whole text of `docs/operating/bridge-configuration.md`."""
    return f"""\
# Configuration of a bridge

Printed by `python -m waltz.configuration.settings_document bridge`; a test compares this file with
the code.

    waltz bridge http|kafka|status|skip FILE

The file is YAML. Keys are dotted, nested, or both. `waltz bridge http --check FILE` judges all of
it, prints what would be in force, and ends; `waltz bridge kafka --check FILE` does so for Kafka.

## A bridge to a webhook

How it works: [bridge.md](../bridge.md).

```yaml
{BRIDGE_EXAMPLE}```

{_table(BRIDGE_KEYS)}

## A bridge to Kafka

How it works: [bridge-kafka.md](../bridge-kafka.md). A file with a key below `bridge.kafka` is that
of such a bridge; unknown keys there are an error. Properties of librdkafka have their own names;
those that are not in the table cannot be set.

```yaml
{KAFKA_BRIDGE_EXAMPLE}```

{_table(KAFKA_BRIDGE_KEYS)}
"""


TOOLS_EXAMPLE = """\
zookeeper:
  connectString: zoo-1.example:2181,zoo-2.example:2181
  sessionTimeout: 30000
cluster.root: /prod/waltz
"""


def tools_page() -> str:
    """Return the whole text of `docs/operating/tools-configuration.md`."""
    return f"""\
# Configuration of the tools

Printed by `python -m waltz.configuration.settings_document tools`; a test compares this file with
the code.

    waltz cluster … -c FILE
    waltz admin … -c FILE

Every command that works on a running cluster takes such a file, also `waltz status`, `waltz append`
and `waltz tail`. It is YAML, with the keys that the command-line tools of Java Waltz have. Instead
of it there are `--zookeeper host:port,host:port/root`, and `--cluster`, which takes the address of
an embedded coordinator, too; without any of the three `$WALTZ_CLUSTER` counts, then `./waltz-data`.
`--tls-ca`, `--tls-cert` and `--tls-key` override what the file says of TLS.

```yaml
{TOOLS_EXAMPLE}```

{_table(key for key in TOOL_KEYS if not key.unused)}

## Keys of the original that this release does not serve

{_unserved(TOOL_KEYS)}
"""


def _page(command: str, process: str, example: str, keys: Sequence[Key[Any]]) -> str:
    served = [key for key in keys if not key.unused]
    return f"""\
# Configuration of {process}

Printed by `python -m waltz.configuration.settings_document {command}`; a test compares this file
with the code.

    waltz {command} [options] [CONFIG_PATH]

The file is YAML. Keys are dotted, nested, or both; the names that Java Waltz has mean the same
here. An option of the command line overrides the file. `--check` judges all of it, prints what
would be in force, and ends.

```yaml
{example}```

A wrong type or range, a missing key, a key that is there twice, and one port for two purposes keep
it from starting; every fault is named, and no password is printed. A key that is not known is
reported with the nearest one that is, and ignored.

{_table(served)}

## Keys of the original that this release does not serve

{_unserved(keys)}
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


def _unserved(keys: Sequence[Key[Any]]) -> str:
    lines = ["| Keys | What happens | Why |", "|---|---|---|"]
    for reason in dict.fromkeys(key.unused for key in keys if key.unused):
        names = [f"`{key.name}`" for key in keys if key.unused == reason]
        lines.append(f"| {', '.join(names)} | a warning | {reason} |")
    return "\n".join(lines)


if __name__ == "__main__":
    pages = {
        "storage": storage_page,
        "server": server_page,
        "archive": archive_page,
        "outbox": outbox_page,
        "bridge": bridge_page,
        "tools": tools_page,
    }
    sys.stdout.write(pages[sys.argv[1]]())
