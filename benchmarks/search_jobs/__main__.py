"""`python -m benchmarks.search_jobs [--long]`."""

from __future__ import annotations

import sys

from benchmarks.search_jobs import main
from benchmarks.target import print_targets

if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--long"}:
        sys.exit(f"no option {', '.join(sorted(unknown))}. Known: --long.")
    print_targets(main(long="--long" in sys.argv))
