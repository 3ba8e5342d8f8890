"""A process that adds to an archive for ever, one small commit after the other.

python -m tests.spark.killed_archive KIND DIRECTORY

Owns no judgement: the test kills the process, and another one adds to what it has left.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import cast

from tests.spark.archive_formats import Kind, located
from tests.spark.test_any_archive import HISTORIES, KEY, written
from waltz.spark.any_archive import create_archive


def main(kind: str, directory: str) -> None:
    location, random = located(cast("Kind", kind), Path(directory)), Random()
    print("ready", flush=True)
    while True:
        archive = create_archive(location, KEY)
        before = archive.contents()
        parts = random.sample(range(3), random.randrange(1, 4))
        files = written(location, before, [(each, random.randrange(1, 40)) for each in parts])
        archive.commit(before, files, HISTORIES[1])
        print(before.commits + 1, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
