"""The cluster of deploy/compose, started from its own files without Docker.

`python -m tests.deploy.compose IMAGE DIRECTORY`, in a network namespace of its own; IMAGE is the
file that `containers.keep` has written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.clusters import ROOT
from tests.deploy.containers import kept
from tests.deploy.fleet import COORDINATOR, Fleet, Planned, running_fleet

FOLDER: Final = ROOT / "deploy" / "compose"
OURS: Final = "waltz:"
"""The part of the image's name that tells our containers from those of others."""


def services() -> dict[str, dict[str, Any]]:
    """Return the services of the file, by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())[
        "services"
    ]
    return found


def mounts(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield source, target and whether it is read-only, of each volume."""
    for each in service.get("volumes", ()):
        source, target, *rest = each.split(":")
        yield source, target, rest == ["ro"]


def planned() -> list[Planned]:
    """Return the containers of our image."""
    return [
        Planned(
            name,
            service["command"],
            {t: FOLDER / source for source, t, fixed in mounts(service) if fixed},
            {t: source for source, t, fixed in mounts(service) if not fixed},
            service.get("environment", {}),
        )
        for name, service in services().items()
        if OURS in service["image"]
    ]


def scrape_targets() -> Iterator[tuple[str, int]]:
    """Yield the name and port of each process that Prometheus is told to scrape."""
    file = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    for job in file["scrape_configs"]:
        for group in job["static_configs"]:
            for target in group["targets"]:
                name, _, port = target.partition(":")
                yield name, int(port)


def play(fleet: Fleet) -> None:
    """Start everything, append, stop everything, and start it once more on the same volumes."""
    nodes = [each for each in fleet.planned if each.startswith(("storage", "server"))]
    fleet.start_zookeeper(FOLDER / "zoo.cfg")
    print(fleet.run_to_end("cluster"), end="")
    fleet.start(*nodes, "console")
    fleet.wait_until_live(*nodes, "console")
    assert fleet.append("first", 1) == 0
    fleet.wait_until_whole()
    for name, port in scrape_targets():
        status, text = fleet.answer(name, port, "/metrics")
        assert (status, "waltz_" in text) == (200, True), (name, status)
    assert fleet.answer("console", 7180, "/")[0] == 200
    for name in ("console", *reversed(nodes)):
        print(f"{name} drained in {fleet.drain(name):.1f} s")
    assert "unchanged" in fleet.run_to_end("cluster")
    fleet.start(*nodes)
    fleet.wait_until_live(*nodes)
    assert fleet.append("second", 1) == 1
    tail = ("tail", "--partition", "1", "--from", "earliest", "--no-follow")
    assert fleet.waltz(*tail).stdout == "0\t0\tfirst\n1\t0\tsecond\n"
    print(f"two appends at {COORDINATOR}")


if __name__ == "__main__":
    with running_fleet(Path(sys.argv[2]), kept(Path(sys.argv[1])), planned()) as it:
        play(it)
