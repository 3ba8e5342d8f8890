"""Draw every picture anew: `python -m docs.pictures`."""

from __future__ import annotations

from docs.pictures.gallery import FOLDER, PICTURES

for name, draw in PICTURES.items():
    (FOLDER / name).write_text(draw())
