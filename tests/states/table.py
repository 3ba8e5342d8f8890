"""The states: what is done to the cluster, what is so then, and how it is undone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.states.judge import SLACK_SECONDS, Truth
from tests.states.world import HOLDERS, PARTITIONS, SPARE, World
from waltz.storage.upkeep_shell import SPACE_READING_SECONDS

Enter = Callable[[World], Truth]
Leave = Callable[[World], None]

BOTH: Final = range(PARTITIONS)
UNWRITABLE: Final[dict[int, bool | None]] = dict.fromkeys(BOTH, False)
NOBODY: Final = "127.0.0.1:9"


@dataclass(frozen=True)
class State:
    """`enter` does it and returns what is so then; `leave` undoes it. `is_quick`: part of the
    ordinary tests."""

    name: str
    enter: Enter
    leave: Leave
    is_quick: bool = False


def nothing(_: World) -> None: ...


def whole(*absent: str) -> set[str]:
    return {*HOLDERS} - {*absent}


def without(*names: str, **more: object) -> Truth:
    """`names` are out of the three holders; appends need two of them."""
    left = whole(*names)
    writable: dict[int, bool | None] = dict.fromkeys(BOTH, len(left) >= 2)
    return Truth(whole=left, writable=writable, **more)  # type: ignore[arg-type]


def well(_: World) -> Truth:
    return Truth(well=True)


def appended(world: World) -> Truth:
    assert world.append(0)
    return Truth(well=True)


def killing(*names: str) -> Enter:
    def enter(world: World) -> Truth:
        world.kill(*names)
        return without(*names)

    return enter


def starting(*names: str) -> Leave:
    def leave(world: World) -> None:
        for name in names:
            world.start(name)

    return leave


def killing_and_appending(world: World) -> Truth:
    world.kill("s1")
    assert world.append(0)
    return without("s1")


def stopping(*names: str) -> Enter:
    def enter(world: World) -> Truth:
        world.stop(*names)
        return without(*names)

    return enter


def resuming(*names: str) -> Leave:
    return lambda world: world.resume(*names)


def filling(*names: str) -> Enter:
    def enter(world: World) -> Truth:
        world.fill(*names)
        # Until a node has looked at its disk again, it takes appends into blocks that it has.
        time.sleep(SPACE_READING_SECONDS + SLACK_SECONDS)
        return without(*names)

    return enter


def emptying(*names: str) -> Leave:
    return lambda world: world.empty(*names)


def cutting(*names: str) -> Enter:
    def enter(world: World) -> Truth:
        for name in names:
            world.cut(name, is_cut=True)
        return without(*names)

    return enter


def healing(*names: str) -> Leave:
    def leave(world: World) -> None:
        for name in names:
            world.cut(name, is_cut=False)

    return leave


def coordinator_stopped(world: World) -> Truth:
    world.stop("coordinator")
    return Truth(coordinator=False)


def coordinator_killed(world: World) -> Truth:
    world.kill("coordinator")
    return Truth(coordinator=False)


def server_killed(world: World) -> Truth:
    world.kill("v1")
    return Truth(servers={"v2"}, well=None)


def server_stopped(world: World) -> Truth:
    world.stop("v1")
    return Truth(servers={"v2"}, well=None)


def servers_killed(world: World) -> Truth:
    world.kill("v1", "v2")
    return Truth(servers=set(), writable=UNWRITABLE)


def no_session_yet(world: World) -> Truth:
    """A server that starts while a majority is away has nothing to go by but the coordinator."""
    world.kill("v1", "v2", "s1", "s2")
    world.start("v1")
    return without("s1", "s2", servers={"v1"})


def started_all(world: World) -> None:
    for name in ("s1", "s2", "v2"):
        world.start(name)


def blank_disk(world: World) -> Truth:
    world.finish("s1")
    world.blank("s1")
    world.start("s1")
    return without("s1")


def taking(world: World) -> None:
    world.done("admin storage", "sync-partitions")


def directory_removed(world: World) -> Truth:
    assert world.append(0)
    world.finish("s1")
    shutil.rmtree(world.files("s1") / "0")
    world.start("s1")
    return Truth(unsure={"s1"}, well=None)  # the others put it back, record by record


def made_blank(world: World) -> None:
    world.finish("s1")
    world.blank("s1")
    world.start("s1")
    world.done("admin storage", "sync-partitions")


def catching_up(world: World) -> Truth:
    world.kill("s1")
    for _ in range(3):
        assert world.append(0)
    world.start("s1")
    return Truth(unsure={"s1"}, well=None)


def damaged_and_repaired(world: World) -> Truth:
    assert world.append(0)
    world.finish("s1")
    world.flip_a_bit("s1", 0, b"a transaction")
    world.start("s1")
    return Truth(unsure={"s1"}, well=None)


def damaged_everywhere(world: World) -> Truth:
    """One record on all disks, with a good one behind it: the partition goes on without it."""
    assert world.append(1)
    assert world.append(1)
    for name in HOLDERS:
        world.finish(name)
        world.flip_a_bit(name, 1, b"a transaction")
    for name in HOLDERS:
        world.start(name)
    return Truth(
        whole={*HOLDERS},
        unsure={*HOLDERS},
        placed={0: {*HOLDERS}, 1: set()},
    )


def repaired_by_hand(world: World) -> None:
    """The same bit again: the record is what it was."""
    for name in HOLDERS:
        world.finish(name)
    for name in HOLDERS:
        for segment in (world.files(name) / "1").glob("*.seg"):
            content = segment.read_bytes()
            segment.write_bytes(content.replace(b"` transaction", b"a transaction"))
        (world.files(name) / "1" / "damaged.json").unlink(missing_ok=True)
    for name in HOLDERS:
        world.start(name)


def switching(*names: str, reads: str = "on", writes: str = "on") -> Enter:
    def enter(world: World) -> Truth:
        for name in names:
            where = ("-s", world.data[name], "-p", f"0-{PARTITIONS - 1}", "--force")
            world.done("admin storage", "access", *where, "--reads", reads, "--writes", writes)
        if writes == "on":
            # It is a full member of the session, from which nobody reads.
            return Truth(unsure={*names}, well=False)
        return without(*names)

    return enter


def switched_on(*names: str) -> Leave:
    def leave(world: World) -> None:
        for name in names:
            where = ("-s", world.data[name], "-p", f"0-{PARTITIONS - 1}")
            world.done("admin storage", "access", *where, "--reads", "on", "--writes", "on")

    return leave


def unknown_node(world: World) -> Truth:
    """The metadata name a node that nobody has ever started."""
    world.done("cluster", "add-storage", "-s", NOBODY, "-a", "10", "-g", "9")
    world.done("cluster", "assign", "-s", NOBODY, "-p", "0")
    return Truth(placed={0: {*HOLDERS, NOBODY}, 1: {*HOLDERS}})


def forgotten_node(world: World) -> None:
    world.done("cluster", "unassign", "-s", NOBODY, "-p", "0", "--shrink-group", "--force")
    world.done("cluster", "remove-storage", "-s", NOBODY, "--force")


def assigned_and_not_taken(world: World) -> Truth:
    world.done("cluster", "assign", "-s", world.data[SPARE], "-p", "0")
    return Truth(placed={0: {*HOLDERS, SPARE}, 1: {*HOLDERS}})


def taken_back(world: World) -> None:
    spare = world.data[SPARE]
    world.done("cluster", "unassign", "-s", spare, "-p", "0", "--shrink-group", "--force")


def spare_dead(world: World) -> Truth:
    """It holds nothing: every partition is whole, the cluster is not."""
    world.kill(SPARE)
    return Truth()


def preferred_elsewhere(world: World) -> Truth:
    prefer = ("-s", world.servers["v2"], "-p", f"0-{PARTITIONS - 1}")
    world.done("admin server", "add-preferred-partition", *prefer)
    return Truth(well=True)


def preferred_no_more(world: World) -> None:
    prefer = ("-s", world.servers["v2"], "-p", f"0-{PARTITIONS - 1}")
    world.done("admin server", "remove-preferred-partition", *prefer)


def old_storage_node(world: World) -> Truth:
    """It speaks version 0, as a Java node: it says nothing of itself."""
    world.restart("s1", WALTZ_STATE_PROTOCOL="0")
    return Truth(unsaid={"s1"}, well=None)


def old_storage_nodes(world: World) -> Truth:
    for name in HOLDERS:
        world.restart(name, WALTZ_STATE_PROTOCOL="0")
    return Truth(unsaid={*HOLDERS}, well=None)


def restarting(*names: str) -> Leave:
    def leave(world: World) -> None:
        for name in names:
            world.restart(name)

    return leave


def old_servers(world: World) -> Truth:
    """They speak version 4, as Java servers: they do not say who takes part."""
    for name in ("v1", "v2"):
        world.restart(name, WALTZ_STATE_PROTOCOL="4")
    return Truth(untold=True, well=False)


def old_servers_and_a_dead_node(world: World) -> Truth:
    for name in ("v1", "v2"):
        world.restart(name, WALTZ_STATE_PROTOCOL="4")
    world.kill("s1")
    return without("s1", untold=True)


def modern_and_alive(world: World) -> None:
    world.start("s1")
    restarting("v1", "v2")(world)


def ended_cleanly(world: World) -> Truth:
    world.finish("s3")
    return without("s3")


STATES: Final = (
    State("all is well", well, nothing, is_quick=True),
    State("a transaction has just been appended", appended, nothing),
    State("a storage node was told to end", ended_cleanly, starting("s3")),
    State("a storage node is killed", killing("s1"), starting("s1")),
    State("a storage node is killed and appends go on", killing_and_appending, starting("s1"),
          is_quick=True),
    State("a storage node hangs", stopping("s1"), resuming("s1"), is_quick=True),
    State("two storage nodes hang", stopping("s1", "s2"), resuming("s1", "s2")),
    State("all storage nodes hang", stopping(*HOLDERS), resuming(*HOLDERS)),
    State("a majority is killed", killing("s1", "s2"), starting("s1", "s2")),
    State("all storage nodes are killed", killing(*HOLDERS), starting(*HOLDERS)),
    State("a storage node is cut off", cutting("s1"), healing("s1")),
    State("a majority is cut off", cutting("s1", "s2"), healing("s1", "s2")),
    State("a disk is full", filling("s1"), emptying("s1")),
    State("two disks are full", filling("s1", "s2"), emptying("s1", "s2")),
    State("all disks are full", filling(*HOLDERS), emptying(*HOLDERS), is_quick=True),
    State("the coordinator hangs", coordinator_stopped, resuming("coordinator"), is_quick=True),
    State("the coordinator is killed", coordinator_killed, starting("coordinator")),
    State("a server is killed", server_killed, starting("v1")),
    State("a server hangs", server_stopped, resuming("v1")),
    State("all servers are killed", servers_killed, starting("v1", "v2")),
    State("a server starts without a majority", no_session_yet, started_all),
    State("a disk is blank", blank_disk, taking),
    State("a partition's directory is gone", directory_removed, made_blank),
    State("a storage node comes back and catches up", catching_up, nothing),
    State("a damaged record is repaired", damaged_and_repaired, nothing),
    State("a record is damaged on all disks", damaged_everywhere, repaired_by_hand),
    State("one replica takes no writes", switching("s1", writes="off"), switched_on("s1")),
    State("a majority takes no writes", switching("s1", "s2", writes="off"),
          switched_on("s1", "s2")),
    State("one replica gives no reads", switching("s1", reads="off"), switched_on("s1")),
    State("one replica is closed to servers", switching("s1", reads="off", writes="off"),
          switched_on("s1")),
    State("the metadata name a node that nobody knows", unknown_node, forgotten_node),
    State("a node has not taken what is assigned to it", assigned_and_not_taken, taken_back),
    State("a node without partitions is killed", spare_dead, starting(SPARE)),
    State("partitions are preferred elsewhere", preferred_elsewhere, preferred_no_more),
    State("a storage node is of version 0", old_storage_node, restarting("s1")),
    State("all storage nodes are of version 0", old_storage_nodes, restarting(*HOLDERS)),
    State("servers are of version 4", old_servers, restarting("v1", "v2")),
    State("servers are of version 4 and a node is killed", old_servers_and_a_dead_node,
          modern_and_alive),
)  # fmt: skip
