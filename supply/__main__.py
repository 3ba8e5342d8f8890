"""Write the bills of materials into a folder: `python -m supply dist`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from supply.bill import bills

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="Folder for the bills.")
arguments = parser.parse_args()
arguments.folder.mkdir(parents=True, exist_ok=True)
for name, text in bills(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))):
    (arguments.folder / name).write_text(text)
