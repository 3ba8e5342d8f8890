"""The page on disk is what the code prints."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.golden import golden_tree
from waltz.cluster.metadata_document import metadata_tables
from waltz.cluster.paths import ClusterPaths

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "metadata.md"


def test_the_page_on_disk_is_up_to_date() -> None:
    assert PAGE.read_text() == metadata_tables(), (
        "run: python -m waltz.cluster.metadata_document > docs/formats/metadata.md"
    )


def test_every_node_that_has_a_name_in_the_code_is_on_the_page() -> None:
    for name, path in vars(ClusterPaths()).items():
        assert f"| `{path}" in metadata_tables(), f"{name}: {path}"


def test_every_node_that_only_ours_has_is_named_as_such() -> None:
    introduction = metadata_tables().partition("## Nodes")[0]
    known = {path.split("/")[2] for path in golden_tree("4-after-clients") if path.count("/") > 1}
    for name, path in vars(ClusterPaths()).items():
        node = path.removeprefix("/waltz").split("/")[1:2]
        assert not node or node[0] in known or f"`{node[0]}`" in introduction, name


def test_constants_and_nested_parts_are_told() -> None:
    text = metadata_tables()
    assert "| magic | int -1259834553 |" in text
    assert "(partition ID: int, generation: int) each" in text
    assert "| `/waltz/ids/client` | counter |" in text
