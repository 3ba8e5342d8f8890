"""Asks how far pipelines are, each with `waltz pipeline status` in a process of its own.

A pipeline keeps its state with its target, which its own command knows how to read; in a process of
its own, so that neither its libraries nor a file that hangs become the console's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from waltz.console.inquiries import PipelineTold
from waltz.console.plain_text import plain

STATUS_SECONDS_MAX: Final = 20.0
"""Seconds for the status of all pipelines; of those that are not done by then nothing is known."""

OUTPUT_BYTES_MAX: Final = 1024 * 1024
"""Bytes that a status may print."""


async def ask_pipelines(files: Sequence[Path]) -> list[PipelineTold]:
    """Return how far each pipeline is, one after the other."""
    loop = asyncio.get_running_loop()
    until = loop.time() + STATUS_SECONDS_MAX
    return [await _ask(file, until - loop.time()) for file in files]


async def _ask(file: Path, seconds: float) -> PipelineTold:
    if seconds <= 0:
        return PipelineTold(str(file), "", "", problem="there was no time left to ask for it")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "waltz.cli.main", "pipeline", "status", "--json", str(file),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(seconds):
            output, said = await asyncio.gather(
                process.stdout.read(OUTPUT_BYTES_MAX), process.stderr.read(OUTPUT_BYTES_MAX)
            )
            status = await process.wait()
    except TimeoutError:
        return PipelineTold(str(file), "", "", problem=f"no answer in {seconds:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        words = said.decode(errors="replace").strip().splitlines()
        reason = words[-1] if words else f"waltz pipeline status ended with {status}"
        return PipelineTold(str(file), "", "", problem=plain(reason))
    return told_pipeline(str(file), output)


def told_pipeline(file: str, output: bytes) -> PipelineTold:
    """Return what a status has printed."""
    try:
        found: Any = json.loads(output)
        rows = tuple(
            (int(each["partition"]), int(each["taken_in"]), int(each["log"]))
            for each in found["partitions"]
        )
        return PipelineTold(file, str(found["kind"]), str(found["target"]), rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        return PipelineTold(file, "", "", problem="its status cannot be read")
