"""What is wrong with single overrides, told without Hydra's own words; and how Hydra wants right ones spelled."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from conf.errors import ConfigError
from conf.folders import groups, options
from conf.overrides import Override, for_a_shell

MOST_SHOWN = 20
LOOK_LIKE = "Overrides look like cluster=frontier or batch.micro_batch_size=2."


def as_hydra_spells(override: Override) -> str:
    """The text that Hydra needs for an override, since people may write some of them shorter.

    The root lists no `sweep` by default, so Hydra wants a plus. A device is chosen inside the cluster, so Hydra wants
    an at sign. An option that is all digits needs quotes, or Hydra would take it for a number. And so does a command
    that is given as a text, since a shell has taken its quotes and Hydra takes braces for mappings.
    """
    text, option = override.text, override.value or ""
    if option.isdigit() and override.key in groups():
        text = f"{override.key}='{option}'"
    if text.startswith("trainer.command=") and "{" in text and not text.partition("=")[2].startswith(("[", "'", '"')):
        quoted = option.replace("\\", "\\\\").replace('"', '\\"')
        return f'trainer.command="{quoted}"'
    if text.startswith("device="):
        return f"device@cluster.{text}"
    return f"+{text}" if text.startswith("sweep=") else text


def wrong_alone(override: Override) -> ConfigError | None:
    """What is wrong with an override that would be wrong beside any others; None if nothing is."""
    key, value = override.key, override.value
    if value is None and override.text.startswith("~"):
        return None
    if value is None or not key:
        return ConfigError("override", override.text, f"states no {'key' if value else 'value'}", LOOK_LIKE)
    if key in groups() and value not in (known := options(key)):
        several = value.split(",")
        if key == "cluster" and len(several) > 1 and set(several) <= set(known):
            remedy = f"Choose one, or compare them with `trisweep plan --clusters {value}`."
            return ConfigError(key, value, "names several clusters", remedy)
        if key == "sweep" and "=" in value:
            remedy = "Name the sweep first, as in `trisweep sweep 175b cluster=frontier`."
            return ConfigError(key, value, "is not the name of a sweep", remedy)
        return no_option(key, value)
    return None if _is_readable(override) else _unreadable(key, value)


def no_option(group: str, value: str) -> ConfigError:
    known = options(group)
    match = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {match[0]}?" if match else f"Known: {', '.join(known)}."
    return ConfigError(group, value, "is not an option of this group", remedy)


def _is_readable(override: Override) -> bool:
    """Whether Hydra's grammar takes it for a single value."""
    try:
        return not OverridesParser.create().parse_override(as_hydra_spells(override)).is_sweep_override()
    except HydraException:
        return False


def _unreadable(key: str, value: str) -> ConfigError:
    if key == "trainer.command" and "{" in value:
        remedy = "Quote a text with braces, and all of it for the shell: \"trainer.command=[train.py,'{world_size}']\"."
        return ConfigError(key, value, "cannot be read", remedy)
    problem = "holds characters that mean something else in an override"
    return ConfigError(key, value, problem, f"Quote the value, and all of it for the shell: {for_a_shell(key, value)}")


def nearest(word: str, known: Sequence[str]) -> str:
    # Who leaves out a word, as in parallel.tensor_size, means the key that has all of the others.
    parts = set(re.split(r"[._]", word))
    longer = [name for name in known if len(parts) > 1 and parts <= set(re.split(r"[._]", name))]
    match = sorted(longer, key=len)[:1] or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if match:
        return f"Did you mean {match[0]}?"
    siblings = [name for name in known if "." not in name] or list(known)
    return f"Known: {', '.join(siblings[:MOST_SHOWN])}."
