"""`python -m tests.network.zookeeper DIRECTORY HOST:PORT`: one that ends with standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from waltz.spark.java import find_java, packaged_java
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address


async def serve(directory: Path, address: Address) -> None:
    directory.mkdir(exist_ok=True)
    process = ZooKeeperProcess(
        directory,
        address,
        java=find_java(os.environ, packaged=packaged_java()).program,
        jars=packaged_jars(),
        log=directory / "log",
    )
    await process.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await process.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Address.parse(sys.argv[2])))
