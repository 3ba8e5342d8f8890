"""Make every file anew: `python -m deploy [--runbooks https://docs.example/operating/]`."""

from __future__ import annotations

import argparse

from deploy.artefacts import FOLDER, RUNBOOKS, artefacts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runbooks", default=RUNBOOKS, help="Prefix of the links to pages.")
arguments = parser.parse_args()
for name, text in artefacts(arguments.runbooks):
    (FOLDER / name).write_text(text)
