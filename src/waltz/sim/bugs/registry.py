"""All seeded bugs, by name."""

from __future__ import annotations

from typing import Final

from waltz.sim.bugs.bug import Bug
from waltz.sim.bugs.client import CLIENT_BUGS
from waltz.sim.bugs.server import SERVER_BUGS
from waltz.sim.bugs.storage import STORAGE_BUGS
from waltz.sim.bugs.store import STORE_BUGS

BUGS: Final[dict[str, Bug]] = {
    bug.name: bug for bug in (*STORAGE_BUGS, *STORE_BUGS, *SERVER_BUGS, *CLIENT_BUGS)
}
