"""Hold the cost model against every published row, and write docs/validation.md.

python -m benchmarks.validate              writes the page and prints the targets
python -m benchmarks.validate --summary    prints the targets
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.target import Target, print_targets
from benchmarks.validation import sections


def main() -> Sequence[Target]:
    """The targets of every section; docs/validation.md is written anew."""
    found = sections()
    return [target for section in found for target in section.targets]


if __name__ == "__main__":
    if "--summary" in sys.argv[1:]:
        print_targets([target for section in sections() for target in section.targets])
    else:
        print_targets(main())
