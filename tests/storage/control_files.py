"""The control file and the node file of a directory: what their tests share."""

from __future__ import annotations

from tests.storage.support import DIRECTORY, t
from waltz.storage.directory.control_struct import ASSIGNED, AVAILABLE, PartitionInfo
from waltz.types import PartitionId, SessionId

PATH = f"{DIRECTORY}/waltz-storage.ctl"
NODE_PATH = f"{DIRECTORY}/waltz-storage.node"
ONE = PartitionId(1)
STARTED = PartitionInfo(SessionId(7), t(99), t(98), AVAILABLE | ASSIGNED)


class Killed(BaseException):
    """The process ends before an operation."""
