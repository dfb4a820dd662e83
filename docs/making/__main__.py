"""python -m docs.making writes the pages anew; a test holds that those in the tree are what the code says today."""

from docs.making import PAGES
from train_core.trial.atomic import write_atomically

for path, page in PAGES.items():
    write_atomically(path, page())
