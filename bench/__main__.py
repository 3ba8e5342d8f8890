"""`python -m bench`: calibrate, then measure, a line at a time."""

from __future__ import annotations

import sys

from bench import cluster, formats
from bench.calibration import calibrate


def main() -> int:
    calibration = calibrate()
    for line in calibration.lines():
        print(line, flush=True)
    for part in (formats, cluster):
        for line in part.measure(calibration):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
