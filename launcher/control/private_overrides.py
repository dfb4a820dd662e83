"""Overrides whose values no record keeps, in a file of their own: whoever goes on with the sweep needs them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import from_json, to_json

from conf.credentials import has_hidden_variables, hide_variables
from conf.errors import UsageError
from conf.overrides import Overrides
from sweeps.folder.journal import Begun
from sweeps.trial import SweepFolder
from train_core.whole_files import write_atomically


def keep_private_overrides(folder: SweepFolder, overrides: Sequence[str]) -> None:
    """Write down those with hidden values. The sweep's folder is private, as are the scripts of its jobs in it."""
    private = [text for text in overrides if hide_variables(text) != text]
    if private:
        write_atomically(folder.private, to_json(private).decode())
    else:
        folder.private.unlink(missing_ok=True)


def overrides_at_begin(folder: SweepFolder, begun: Begun) -> Overrides:
    """The overrides with which the sweep was begun, with their values.

    Raises:
        UsageError: the file that holds the hidden ones is gone or damaged.
    """
    whole = {hide_variables(text): text for text in _stored_overrides(folder)}
    texts = [whole.get(text, text) for text in begun.overrides]
    if lost := [text for text in texts if has_hidden_variables(text)]:
        problem = f"The values of {' '.join(lost)} are not in {folder.private}, where the command kept them"
        raise UsageError(problem, "Give the command of the sweep again.")
    return Overrides.parse(texts)


def _stored_overrides(folder: SweepFolder) -> list[str]:
    try:
        kept = from_json(folder.private.read_bytes())
    except (OSError, ValueError):
        return []
    return [text for text in kept if isinstance(text, str)] if isinstance(kept, list) else []
