"""The ranks of a short calibration, which `hardware` starts. `python -m benchmarks.gpu_check.rates_job FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from calibrate.rates_job import Here
from conf.errors import EXIT_USAGE, UsageError
from rates.record import RatesFolder


def main() -> None:
    folder = RatesFolder(Path(sys.argv[1]))
    try:
        Here().measure(folder, folder.read_plan(), lambda told: None)
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
