"""The printed page of keys."""

from __future__ import annotations

from pathlib import Path

from waltz.configuration.bridge_settings import BRIDGE_KEYS, bridge_settings
from waltz.configuration.kafka_bridge_settings import (
    KAFKA_BRIDGE_KEYS,
    kafka_bridge_settings,
)
from waltz.configuration.outbox_settings import OUTBOX_KEYS, outbox_settings
from waltz.configuration.server_settings import SERVER_KEYS, server_settings
from waltz.configuration.settings_document import (
    BRIDGE_EXAMPLE,
    EXAMPLE,
    KAFKA_BRIDGE_EXAMPLE,
    OUTBOX_EXAMPLE,
    SERVER_EXAMPLE,
    TOOLS_EXAMPLE,
    bridge_page,
    outbox_page,
    server_page,
    storage_page,
    tools_page,
)
from waltz.configuration.storage_settings import STORAGE_KEYS, storage_settings
from waltz.configuration.tools_settings import TOOL_KEYS, tool_settings
from waltz.configuration.yaml_text import read_yaml

OPERATING = Path(__file__).parents[2] / "docs" / "operating"


def test_the_printed_page_is_current() -> None:
    pages = {
        "storage": storage_page(),
        "server": server_page(),
        "outbox": outbox_page(),
        "bridge": bridge_page(),
        "tools": tools_page(),
    }
    for name, page in pages.items():
        printed = (OPERATING / f"{name}-configuration.md").read_text()
        assert printed == page, "run `make docs`"


def test_every_key_is_on_the_page() -> None:
    page = storage_page()
    assert all(f"`{key.name}`" in page for key in STORAGE_KEYS)
    page = server_page()
    assert all(f"`{key.name}`" in page for key in SERVER_KEYS)
    page = outbox_page()
    assert all(f"`{key.name}`" in page for key in OUTBOX_KEYS)
    page = bridge_page()
    assert all(f"`{key.name}`" in page for key in (*BRIDGE_KEYS, *KAFKA_BRIDGE_KEYS))
    page = tools_page()
    assert all(f"`{key.name}`" in page for key in TOOL_KEYS)


def test_the_example_is_a_configuration() -> None:
    assert storage_settings(read_yaml(EXAMPLE, "example")).warnings == ()
    assert server_settings(read_yaml(SERVER_EXAMPLE, "example")).warnings == ()
    assert outbox_settings(read_yaml(OUTBOX_EXAMPLE, "example")).warnings == ()
    assert bridge_settings(read_yaml(BRIDGE_EXAMPLE, "example")).warnings == ()
    assert kafka_bridge_settings(read_yaml(KAFKA_BRIDGE_EXAMPLE, "example")).warnings == ()
    assert tool_settings(read_yaml(TOOLS_EXAMPLE, "example")).warnings == ()
