"""Hold the cost model against every published row, and write docs/validation.md.

python -m benchmarks.validate              writes the page and prints the targets
python -m benchmarks.validate --summary    prints the targets
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.target import Target, print_targets
from benchmarks.validation import validation
from benchmarks.validation_page import PAGE, page
from train_core.whole_files import write_atomically


def main() -> list[Target]:
    """Write docs/validation.md anew, and return the targets."""
    found = validation()
    write_atomically(PAGE, page(found))
    return list(found.targets)


def run(arguments: Sequence[str]) -> None:
    print_targets(validation().targets if "--summary" in arguments else main())


if __name__ == "__main__":
    run(sys.argv[1:])
