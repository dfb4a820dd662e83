"""Makes the pages of the documentation that follow from the code: `python -m docs.making`."""

from pathlib import Path

from docs.making import commands, keys

REFERENCE = Path(__file__).parents[1] / "reference"
PAGES = {REFERENCE / "commands.md": commands.page, REFERENCE / "keys.md": keys.page}
