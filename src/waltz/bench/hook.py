"""Changes the processes of a started cluster for a measurement: the product has no switches for
this. A `sitecustomize.py`, which Python runs at its start if it is on the path, calls the `install`
of some modules; each of them checks whether its process is meant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_hook(directory: Path, installed: Mapping[str, str]) -> dict[str, str]:
    """Create the hook in `directory`, which must not exist, and return the environment in which it
    works: that of this process, with the given values added.

    `installed`: by module, its value, which the module finds in its own variable (`variable`).
    """
    directory.mkdir()
    lines = [f"import {module}\n{module}.install()\n" for module in installed]
    (directory / "sitecustomize.py").write_text("\n".join(lines))
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    told = {variable(module): value for module, value in installed.items()}
    return os.environ | told | {"PYTHONPATH": os.pathsep.join(paths)}


def variable(module: str) -> str:
    """Return the name of the environment variable that has a module's value."""
    return module.upper().replace(".", "_")
