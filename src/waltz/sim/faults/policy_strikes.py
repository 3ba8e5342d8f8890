"""Stores policies that deny partitions to everybody in the coordinator of a run, and takes the
denials back.

Owns the text of these policies and the operator who stores them. The plan chooses the partitions
and the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final

from waltz.access.policy_text import parse_policy
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.policy_node_shell import read_policy_node, write_policy_node
from waltz.errors import CoordinatorLostError, UnavailableError
from waltz.host import Host
from waltz.limits import PARTITIONS_MAX
from waltz.sim.faults.kinds import ChangedPolicy

TRY_AGAIN_SECONDS: Final = 0.5
"""Seconds before another attempt, if the coordinator is away."""

NOWHERE: Final = PARTITIONS_MAX - 1
"""A partition that no run has: a role must name one."""

TEXT: Final = """\
version: {version}
mode: deny
default: deny
roles:
  writers: {{verbs: [append], partitions: {appended}}}
  readers: {{verbs: [read], partitions: {read}}}
  others: {{verbs: [status, explain, prefer, cut], partitions: all}}
grants:
  anonymous: [writers, readers, others]
"""

Act = Callable[[Host], Coroutine[Any, Any, None]]
Run = Callable[[Act, float | None], Coroutine[Any, Any, None]]
"""Lets an operator act."""


async def change_policy(
    fault: ChangedPolicy, partition_count: int, run: Run, note: Callable[..., None]
) -> None:
    """Return once the partitions have been denied for the time of `fault`, and everything is
    granted again."""
    everything = range(partition_count)
    rest = [each for each in everything if each not in fault.denied]
    denying = partial(_store, appended=rest, read=everything if fault.appends_only else rest)
    await run(partial(denying, note=note), None)
    await asyncio.sleep(fault.seconds)
    await run(partial(_store, appended=everything, read=everything, note=note), None)


async def _store(
    host: Host, *, appended: Collection[int], read: Collection[int], note: Callable[..., None]
) -> None:
    """Try until a policy is stored by which these partitions may be appended to, and read."""
    while True:
        try:
            node = await read_policy_node(host.coordinator, DEFAULT_ROOT)
            version = 1
            if node is not None:
                version += parse_policy(node.data or b"", "the stored policy").version
            text = TEXT.format(
                version=version,
                appended=_shown(appended),
                read=_shown(read),
            )
            if await write_policy_node(host.coordinator, DEFAULT_ROOT, text.encode(), over=node):
                note("policy", version, *appended)
                return
        except (CoordinatorLostError, UnavailableError):
            await asyncio.sleep(TRY_AGAIN_SECONDS)


def _shown(partitions: Collection[int]) -> str:
    return f"[{', '.join(map(str, partitions or (NOWHERE,)))}]"
