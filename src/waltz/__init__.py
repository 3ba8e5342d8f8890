"""Waltz: a distributed, replicated write-ahead log for transactions, with optimistic locking.

    with waltz.open_client("localhost:2181", callbacks) as client:
        client.submit(context)

    with waltz.open_reader("localhost:2181") as log:
        for columns in log.read(0, 0, log.high_water_mark(0) + 1): ...

`cluster` is how the cluster is found. By some of its servers: `waltz://host:port,host:port`; one
that answers is enough, the others are learnt from it, and no coordinator is needed. Or by its
coordinator: `host:port` of the one that `waltz up` runs, `zookeeper://host:port,host:port/root`.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load the module behind a public name at its first use, as `__init__.pyi` lists it.

    A command that wants one part of Waltz does not pay for importing all of it.
    """
    value = globals()[name] = _load(name)
    return value
