"""Sends a running server and a running storage node what no peer should, and holds them to their
promises: they live on, say why they end a connection or how often they did not, take no more
memory, and serve others.

make fuzz-servers FRAMES=1000000
python -m tests.fuzz.processes --frames 20000 --seed mine
python -m tests.fuzz.processes --show 'server mine 17'        the bytes of one attack
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.fuzz.attacks import PARTITIONS, Target, attack
from waltz.bench.processes import proportional_bytes
from waltz.cli.nodes import run_loop
from waltz.peer_log import PEER_LINES_SECONDS
from waltz.types import Address

CONNECTIONS: Final = 48
"""At a time."""

PATIENCE_SECONDS: Final = 0.2
"""How long a connection that is not ended is left open; then this side sends its end."""

END_SECONDS_MAX: Final = 20.0
"""After that it has to be ended by the other side, too."""

PART: Final = 4_000
"""Attacks between two looks at what the processes say and take."""

GROWTH_BYTES_MAX: Final = 100 * 1024 * 1024
SOURCES: Final = 200
"""Addresses that the attacks come from: each has its own bound of connections, and of ports."""

NAMES: Final = {"server": "server-1", "storage": "storage-3", "admin": "storage-3"}
SHARES: Final = {"server": 0.5, "storage": 0.3, "admin": 0.2}

PEER: Final = re.compile(r"peer=(\S+)")
LEFT_OUT: Final = re.compile(r" lines_left_out event=\S+ count=(\d+) ")
REASONS_SECONDS_MAX: Final = 2 * PEER_LINES_SECONDS
"""After the last attack: for the lines that count what was left out, a minute later."""
BAD: Final = re.compile(r"^\S+ (ERROR|CRITICAL) |^Traceback|^Exception|^Task ")
"""What a process says of a bug of its own."""


@dataclass
class Findings:
    """What a run has seen; `ended` counts by port and kind how connections ended."""

    attacks: int = 0
    seconds: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)
    pss_before: dict[str, int] = field(default_factory=dict)
    pss_peak: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Log:
    """What a process says, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.left_out = 0
        """Lines about peers that were counted and not written."""
        self.unnamed = 0
        """Peers that were cut off and not named."""
        self._file = path.open(errors="replace")
        self._file.seek(0, 2)
        self._rest = ""

    def new_lines(self) -> list[str]:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        return lines


class Attacker:
    """Attacks one port of a running cluster."""

    def __init__(self, cluster: RunningCluster, port: str, seed: str, findings: Findings) -> None:
        state = cluster.state
        node: dict[str, Any] = state["servers"][0] if port == "server" else state["storages"][2]
        self.address = Address.parse(node["admin" if port == "admin" else "address"])
        self.target = Target(port, UUID(state["cluster_key"]))
        self.name = NAMES[port]
        self.cut_by_peer: set[str] = set()
        self._seed = seed
        self._findings = findings

    async def attack(self, number: int) -> None:
        """One connection, to its end."""
        chosen = attack(self.target, f"{self._seed} {number}")
        recipe = f"--show '{self.target.port} {self._seed} {number}'"
        source = f"127.0.1.{1 + number % SOURCES}"
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                how = await self._play(chosen.data, source)
        except TimeoutError:
            how = "not ended"
            self._findings.failures.append(f"{recipe}: {END_SECONDS_MAX:g} s and not ended")
        except OSError as error:
            how = "not let in"
            self._findings.failures.append(f"{recipe}: {error}")
        self._findings.ended[f"{self.target.port}, {chosen.kind}: {how}"] += 1

    async def _play(self, data: bytes, source: str) -> str:
        """Return who has ended the connection."""
        reader, writer = await asyncio.open_connection(
            self.address.host, self.address.port, local_addr=(source, 0)
        )
        own = writer.get_extra_info("sockname")
        try:
            writer.write(data)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await read_to_the_end(reader)
            except TimeoutError:
                writer.write_eof()
                await read_to_the_end(reader)
                return "ended by us"
            self.cut_by_peer.add(f"{own[0]}:{own[1]}")
            return "ended by them"
        except ConnectionError:
            self.cut_by_peer.add(f"{own[0]}:{own[1]}")
            return "ended by them"
        finally:
            writer.close()


async def read_to_the_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def attack_all(
    cluster: RunningCluster, frames: int, seed: str, findings: Findings, *, counts: bool
) -> None:
    """Attack all ports in turns, and look after each part what it has done; `counts`: wait until
    the processes have named or counted every peer that they cut off."""
    attackers = [Attacker(cluster, port, seed, findings) for port in SHARES]
    logs = {name: Log(cluster.directory / "logs" / f"{name}.log") for name in NAMES.values()}
    pids = {name: cluster.pid(name) for name in logs}
    findings.pss_before = {name: proportional_bytes(pid) for name, pid in pids.items()}
    began = said = time.monotonic()
    room = asyncio.Semaphore(CONNECTIONS)

    async def one(attacker: Attacker, number: int) -> None:
        async with room:
            await attacker.attack(number)

    for first in range(0, frames, PART):
        count = min(PART, frames - first)
        for attacker in attackers:
            own = round(count * SHARES[attacker.target.port])
            await asyncio.gather(*(one(attacker, first + n) for n in range(own)))
            findings.attacks += own
        look(cluster, attackers, logs, pids, findings)
        if time.monotonic() - said > 20:
            said = time.monotonic()
            rate = findings.attacks / (said - began)
            print(f"{findings.attacks} attacks, {rate:.0f}/s, {findings.pss_peak}", flush=True)
        if len(findings.failures) > 20:
            break
    findings.seconds = time.monotonic() - began
    patience = time.monotonic() + REASONS_SECONDS_MAX
    while counts and any(log.unnamed > log.left_out for log in logs.values()):
        if time.monotonic() > patience:
            findings.failures += [
                f"{name}: {log.unnamed} peers were cut off and not named, {log.left_out} lines"
                " left out"
                for name, log in logs.items()
            ]
            break
        await asyncio.sleep(0.5)
        look(cluster, attackers, logs, pids, findings)


def look(
    cluster: RunningCluster,
    attackers: list[Attacker],
    logs: dict[str, Log],
    pids: dict[str, int],
    findings: Findings,
) -> None:
    for name, log in logs.items():
        if cluster.pid(name) != pids[name]:
            findings.failures.append(f"{name} has ended and was started again")
            pids[name] = cluster.pid(name)
        lines = log.new_lines()
        told = {peer for line in lines for peer in PEER.findall(line)}
        findings.failures += [f"{name} said: {line}" for line in lines if BAD.search(line)][:5]
        log.left_out += sum(int(count) for line in lines for count in LEFT_OUT.findall(line))
        for attacker in attackers:
            if attacker.name == name:
                log.unnamed += len(attacker.cut_by_peer - told)
                attacker.cut_by_peer.clear()
        used = proportional_bytes(pids[name])
        findings.pss_peak[name] = max(findings.pss_peak.get(name, 0), used)
        if used - findings.pss_before[name] > GROWTH_BYTES_MAX:
            findings.failures.append(f"{name} has grown to {used} bytes")


def check_service(cluster: RunningCluster, findings: Findings) -> None:
    """Others are served: every partition takes an append and gives it back."""
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        written = [client.append(number, b"after it") for number in range(PARTITIONS)]
    with waltz.open_reader(cluster.coordinator) as reader:
        for number, transaction_id in enumerate(written):
            (run,) = reader.read(number, transaction_id, transaction_id + 1)
            if list(run.data) != [b"after it"]:
                findings.failures.append(f"partition {number} holds {run.data}")


def fuzz_processes(directory: Path, frames: int, seed: str, *, counts: bool = True) -> Findings:
    """Attack a new cluster, whose files and logs lie in `directory`."""
    findings = Findings()
    with running_cluster(directory, "--partitions", str(PARTITIONS)) as cluster:
        check_service(cluster, findings)
        run_loop(attack_all(cluster, frames, seed, findings, counts=counts))
        check_service(cluster, findings)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz running servers and storage nodes.")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--directory", help="keep the cluster's files and logs there")
    parser.add_argument("--json", help="write what was seen to this file")
    parser.add_argument("--show", help="print the bytes of one attack, as a failure named it")
    arguments = parser.parse_args()
    if arguments.show:
        port, _, seed = arguments.show.partition(" ")
        found = attack(Target(port, UUID(int=0)), seed)
        print(f"{found.kind}\n{found.data.hex(' ')}")
        return 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        directory = Path(arguments.directory or f"{scratch}/cluster").absolute()
        findings = fuzz_processes(directory, arguments.frames, arguments.seed)
    for how, count in sorted(findings.ended.items()):
        print(f"{count:>8}  {how}")
    for name, before in findings.pss_before.items():
        peak = findings.pss_peak[name]
        print(f"{name}: PSS {before / 2**20:.1f} MiB before, {peak / 2**20:.1f} MiB at most")
    print(
        f"{findings.attacks} attacks in {findings.seconds:.0f} s, {len(findings.failures)} failures"
    )
    for failure in findings.failures:
        print(failure)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(vars(findings), indent=1))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
