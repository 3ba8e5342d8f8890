"""Containers of one image, each on a machine of its own with a name that the others know.

A machine is a network namespace (tests/network/links.py). The processes are started with the
commands and files that a Compose file or a chart gives them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.clusters import ROOT, wait_until
from tests.deploy.containers import Container, Image, Process, bwrap, this_machine, volume
from tests.network.links import Links
from tests.zookeepers import packaged_program
from waltz.system.zookeeper_process import MAIN_CLASS, packaged_jars

COORDINATOR: Final = "zookeeper://zookeeper:2181/waltz"
START_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True)
class Planned:
    """A container as a file of an orchestrator describes it."""

    name: str
    arguments: Sequence[str]
    """The arguments of the entry point."""
    files: Mapping[str, Path] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Names of volumes by the places where they are mounted."""
    environment: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Further names by which others know the machine."""


class Fleet:
    """Machines with containers; `directory` holds volumes, logs and what is mounted."""

    def __init__(
        self,
        directory: Path,
        image: Image,
        planned: Sequence[Planned],
        operator: Planned = Planned("operator", ()),
    ) -> None:
        """The arguments of `operator` are options of all of its commands."""
        self.directory = directory
        self.operator = operator
        self.links = Links(["zookeeper", "operator", *(each.name for each in planned)])
        self.processes: dict[str, Process] = {}
        hosts = directory / "hosts"
        lines = ["127.0.0.1 localhost"]
        for names in (("zookeeper",), *((each.name, *each.names) for each in planned)):
            lines.append(f"{self.links[names[0]].address} {' '.join(names)}")
        hosts.write_text("\n".join(lines) + "\n")
        hosts.chmod(0o644)
        (directory / "volumes").mkdir()
        self.containers: dict[str, Container] = {}
        self.planned = {each.name: each for each in planned}
        for each in (*planned, operator):
            self.containers[each.name] = Container(
                image,
                {
                    target: volume(directory / "volumes" / name, image)
                    for target, name in each.volumes.items()
                },
                {"/etc/hosts": hosts, **each.files},
                each.environment,
                self.links[each.name].inside,
            )

    def start_zookeeper(self, configuration: Path) -> None:
        """Start the ZooKeeper that PySpark brings, with a configuration of the one in an image."""
        mounts = this_machine()
        for folder in ("data", "datalog"):
            (self.directory / folder).mkdir()
            mounts += ["--bind", str(self.directory / folder), f"/{folder}"]
        jars = packaged_jars()
        for place in {str(ROOT), sys.prefix, str(jars[0].parent)}:
            mounts += ["--ro-bind", place, place]
        java = [str(packaged_program()), "-cp", ":".join(map(str, jars)), MAIN_CLASS]
        mounts += ["--ro-bind", str(configuration), "/conf/zoo.cfg", "--die-with-parent"]
        with (self.directory / "zookeeper.log").open("w") as log:
            popen = subprocess.Popen(
                [*self.links["zookeeper"].inside, bwrap(), *mounts, "--", *java, "/conf/zoo.cfg"],
                stdout=log,
                stderr=log,
                text=True,
            )
        self.processes["zookeeper"] = Process(popen, popen.pid)

    def run_to_end(self, name: str) -> str:
        """Run a container that is to end well, again while it does not; return what it printed."""
        container, planned = self.containers[name], self.planned[name]
        said: list[str] = []

        def ended_well() -> bool:
            done = container.run(*container.image.entrypoint, *planned.arguments)
            said[:] = [done.stdout, done.stderr]
            return done.returncode == 0

        wait_until(ended_well, f"{name} does not end well: {said}", START_SECONDS_MAX)
        return said[0]

    def start(self, *names: str) -> None:
        for name in names:
            with (self.directory / f"{name}.log").open("a") as log:
                self.processes[name] = self.containers[name].start(
                    *self.planned[name].arguments, stdout=log, stderr=log
                )

    def wait_until_live(self, *names: str) -> None:
        """Return once the image's own question of health is answered in each container."""
        for name in names:

            def is_live(name: str = name) -> bool:
                assert self.processes[name].popen.poll() is None, self.log(name)
                container = self.containers[name]
                return container.run(*container.image.health).returncode == 0

            wait_until(is_live, f"{name} is not live", START_SECONDS_MAX)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def waltz(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of an operator, on a machine of its own."""
        container = self.containers["operator"]
        options = ("--cluster", COORDINATOR, *self.operator.arguments)
        return container.run(*container.image.entrypoint, *arguments, *options)

    def append(self, text: str, partition: int) -> int:
        """Append a transaction and return its ID; try again while no server has the partition."""
        ids: list[int] = []

        def is_appended() -> bool:
            done = self.waltz("append", "--partition", str(partition), text)
            ids[:] = [int(done.stdout)] if done.returncode == 0 else []
            return bool(ids)

        wait_until(is_appended, f"{text!r} is not appended", START_SECONDS_MAX)
        return ids[0]

    def wait_until_whole(self) -> None:
        """Return once every replica takes part, as `waltz cluster verify` asks them."""

        def is_whole() -> bool:
            return self.waltz("cluster", "verify").returncode == 0

        wait_until(is_whole, "the cluster is not whole", START_SECONDS_MAX)

    def answer(self, name: str, port: int, path: str) -> tuple[int, str]:
        """Return status and text of a machine's answer to a request from another machine."""
        url = f"http://{self.links[name].address}:{port}{path}"
        asked = urllib.request.Request(url, headers={"Accept": "text/plain"})
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def drain(self, name: str) -> float:
        """Stop a container as orchestrators do; return how many seconds the stop took."""
        begun = time.monotonic()
        code = self.processes.pop(name).end(signal.SIGTERM)
        assert code == 0, self.log(name)
        return time.monotonic() - begun

    def close(self) -> None:
        for process in self.processes.values():
            process.popen.kill()
            process.popen.wait()
        self.links.close()


@contextmanager
def running_fleet(
    directory: Path,
    image: Image,
    planned: Sequence[Planned],
    operator: Planned = Planned("operator", ()),
) -> Iterator[Fleet]:
    fleet = Fleet(directory, image, planned, operator)
    try:
        yield fleet
    finally:
        fleet.close()
