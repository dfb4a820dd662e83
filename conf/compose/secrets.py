"""Stand-ins in a composed configuration for what a program is told and nobody else is to see."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from conf.credentials import SECRET, SECRET_WORD, stand_in_for
from conf.folders import conf_dir, package_content
from conf.overrides import value_text

NAME_IN_BRACES = re.compile(r"(?<!\{)\{[a-z_.]+\}")
"""What the job fills in, see `conf.plan.trainer_call`: a value with such a name is shown."""


def with_stand_ins(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with stand-ins for the program's variables, and for its values that have the name of a secret.

    A variable is shown where the package's own file gives it that value, where it holds a name in braces, and where the
    sweep varies it.
    """
    sweep = tree.get("sweep")
    stages = (sweep.get("stages") if isinstance(sweep, dict) else None) or []
    for group in (tree, *stages):
        if isinstance(group, dict) and isinstance(group.get("trainer"), dict):
            _hide_secrets(group["trainer"], varied=str(sweep))
    return tree


def _hide_secrets(trainer: dict[str, Any], varied: str) -> None:
    environment = trainer.get("environment")
    if isinstance(environment, dict) and environment:
        public = _packaged_variables()
        trainer["environment"] = {
            name: value if (name, str(value)) in public or f"trainer.environment.{name}" in varied else _hidden(value)
            for name, value in environment.items()
        }
    for part in ("command", "prefix", "flags", "files"):
        if trainer.get(part):
            trainer[part] = _without_secrets(trainer[part], is_text=part != "flags")


def _hidden(value: object) -> object:
    """The stand-in of one value; null, and what is filled in by the job, is none."""
    text = value_text(value) if isinstance(value, int | float) else value
    if not isinstance(text, str) or NAME_IN_BRACES.search(text):
        return value
    # Braces are doubled where they are no name's, as in all that the job fills in.
    inner = text.replace("{{", "").replace("}}", "")
    return stand_in_for(text if "{" in inner or "}" in inner else text.replace("{{", "{").replace("}}", "}"))


@cache
def _packaged_variables() -> frozenset[tuple[str, str]]:
    contents = [package_content(f"trainer/{path.name}") for path in (conf_dir() / "trainer").glob("*.yaml")]
    return frozenset((name, str(value)) for each in contents for name, value in (each.get("environment") or {}).items())


def _without_secrets(part: Any, *, is_text: bool, name: str = "") -> Any:
    """The part with stand-ins for values of secret names; in texts, for the words that follow such names."""
    if isinstance(part, dict):
        return {key: _without_secrets(value, is_text=is_text, name=str(key)) for key, value in part.items()}
    if isinstance(part, list):
        before = ["", *map(str, part)]
        pairs = zip(before, part, strict=False)
        return [_without_secrets(word, is_text=is_text, name=last.lstrip("-")) for last, word in pairs]
    if not isinstance(part, bool) and not str(part).startswith("-") and re.fullmatch(SECRET, name, re.IGNORECASE):
        return _hidden(part)
    if is_text and isinstance(part, str):
        return SECRET_WORD.sub(lambda match: f"{match[1]}{_hidden(match[2])}", part)
    return part
