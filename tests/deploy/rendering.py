"""The manifests that Helm renders for each set of values; `python -m tests.deploy.rendering` keeps
them.

What is kept is judged in every run of the tests; Helm itself takes minutes to build.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tests.deploy.chart import CHART, FOLDER, KUBERNETES, NAMES, NAMESPACE
from tests.deploy.tools import HELM, helm

DIGEST: Final = FOLDER / "digest"
"""The digest of all that was rendered, and of what rendered it."""


def digest() -> str:
    """Return the digest of the chart, the sets of values and the version of Helm."""
    total = hashlib.sha256(f"{HELM} {KUBERNETES} {NAMESPACE}".encode())
    values = [values_of(name) for name in NAMES]
    for path in sorted([*(each for each in CHART.rglob("*") if each.is_file()), *values]):
        total.update(f"\n{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return total.hexdigest() + "\n"


def values_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def rendered(name: str) -> str:
    options = ("--namespace", NAMESPACE, "--kube-version", f"{KUBERNETES}.0")
    return helm("template", "waltz", CHART, *options, "--values", values_of(name))


if __name__ == "__main__":
    for each in NAMES:
        (FOLDER / f"{each}.golden.yaml").write_text(rendered(each))
    DIGEST.write_text(digest())
