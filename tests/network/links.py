"""Machines that are network namespaces, joined by a bridge; what one sends another may be dropped.

Everything is made inside the namespace of the calling process, which is to be one of its own
(`run_alone`): it ends with the processes that live in it, so that nothing is left behind. All that
is needed is `ip`, `unshare` and `nsenter`.

A way is cut by giving the receiver a hardware address that nobody has: packets leave and never
arrive, and neither side is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

TOOLS: Final = ("ip", "unshare", "nsenter")
BRIDGE: Final = "bridge"
OBSERVER: Final = "10.77.0.1"
"""Where the calling process is; it is never cut off."""

NOBODY: Final = "02:00:00:00:00:00"


class Way(NamedTuple):
    """What the machine `source` sends to the machine `target`."""

    source: str
    target: str


def refusal() -> str | None:
    """Why there can be no such machines here; None where there can."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"no `{tool}` here (Debian: iproute2, util-linux)"
    done = subprocess.run(
        [*_alone(), *_alone_again(), "ip", "link", "add", "name", "one", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f"the kernel makes no network namespaces for this user: {done.stderr.strip()}"
    done = subprocess.run(
        [*_alone(), "ip", "link", "add", "name", "one", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"the kernel has no bridge: {done.stderr.strip()}" if done.returncode else None


def run_alone(*arguments: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run Python with `arguments` in a network namespace of its own, to its end.

    `options` are those of `subprocess.run`.
    """
    command = [*_alone(), sys.executable, *arguments]
    return subprocess.run(command, check=False, **options)


def _alone() -> list[str]:
    """A user that is not root is root in a user namespace, if the kernel allows it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net"]


def _alone_again() -> list[str]:
    return ["unshare", "--net"]


def _ip(commands: Iterable[str], *, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


class Machine:
    """One namespace, which lives as long as this object's process."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.hardware = f"02:77:00:00:00:{number:02x}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # It echoes once it is there, in the namespace that it has made.
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write("there\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        port = f"to-{number}"
        _ip(
            [
                f"link add {port} type veth peer name eth0 netns {self._holder.pid}",
                f"link set {port} master {BRIDGE} up",
            ]
        )
        _ip(
            [
                "link set lo up",
                f"link set eth0 address {self.hardware}",
                f"addr add {self.address}/24 dev eth0",
                "link set eth0 up",
            ],
            inside=self.inside,
        )

    @property
    def inside(self) -> list[str]:
        """What a command begins with to run in the namespace."""
        return ["nsenter", "--net", "--target", str(self._holder.pid)]

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Links:
    """The machines called `names`, each of which reaches all others until ways are cut."""

    def __init__(self, names: Sequence[str]) -> None:
        _ip(
            [
                "link set lo up",
                f"link add {BRIDGE} type bridge",
                f"link set {BRIDGE} up",
                f"addr add {OBSERVER}/24 dev {BRIDGE}",
            ]
        )
        self._machines = {name: Machine(name, 10 + place) for place, name in enumerate(names)}
        self._cut: set[Way] = set()
        self._send(
            [Way(a, b) for a in self._machines for b in self._machines if a != b], dropped=False
        )

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def cut(self, ways: Iterable[Way]) -> None:
        """Drop what is sent on them from now on; what is cut already stays so."""
        new = sorted(set(ways) - self._cut)
        self._cut.update(new)
        self._send(new, dropped=True)

    def heal(self) -> None:
        """Let everything through again."""
        healed, self._cut = sorted(self._cut), set()
        self._send(healed, dropped=False)

    def _send(self, ways: Sequence[Way], *, dropped: bool) -> None:
        for source in sorted({way.source for way in ways}):
            targets = [self._machines[way.target] for way in ways if way.source == source]
            _ip(
                [
                    f"neigh replace {target.address} lladdr"
                    f" {NOBODY if dropped else target.hardware} nud permanent dev eth0"
                    for target in targets
                ],
                inside=self._machines[source].inside,
            )

    def close(self) -> None:
        for machine in self._machines.values():
            machine.close()
