"""What the Java original wrote into ZooKeeper: values one by one, and whole trees."""

from __future__ import annotations

import json
from pathlib import Path

from waltz.host import Node

DIRECTORY = Path(__file__).parent.parent / "golden"

VALUES = {
    name.removeprefix("zk "): bytes.fromhex(value)
    for name, _, value in (
        line.partition(" = ") for line in (DIRECTORY / "frames.txt").read_text().splitlines()
    )
    if name.startswith("zk ") and name not in ("zk magic", "zk int 0")
}


def golden_tree(name: str, root: str = "/waltz_cluster") -> dict[str, Node]:
    """The nodes of one dump below and at `root`."""
    nodes = {}
    for line in (DIRECTORY / f"zk-{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["path"] == root or entry["path"].startswith(f"{root}/"):
            data = None if entry["dataNull"] else bytes.fromhex(entry["dataHex"])
            nodes[entry["path"]] = Node(data, entry["version"], entry["cversion"])
    return nodes


TREES = sorted(path.stem.removeprefix("zk-") for path in DIRECTORY.glob("zk-*.jsonl"))
