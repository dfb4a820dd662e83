"""Secrets of the configuration: used, but neither kept nor shown.

They are the user names and passwords inside addresses, such as `https://user:password@host`, the whole address of a
webhook (`notify.url`), whose path is its password, and the values of `slurm.environment`, of which the names are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN, SECRET_KEY = "***", "notify.url"
SECRETS_IN = {"notify": SECRET_KEY, "slurm": "slurm.environment.NAME"}
"""Groups with values that are hidden, and the key of one of these."""

USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""The part of an address between its scheme and its host."""

WEBHOOK = re.compile(r"(notify\.url=)\S+")
"""The override that names a webhook, wherever a text quotes it."""

OF_ENVIRONMENT = re.compile(r"(\+{0,2}slurm\.environment(?:\.[^=\s]+)?)=(.*)", re.DOTALL)
"""An override of one variable of jobs, or of all of them."""

PAIR = re.compile(r"([\w\"']+)\s*:\s*(\"[^\"]*\"|'[^']*'|[^,{}]*)")
SHOWN_PAIR = rf"\1: {HIDDEN}"
WEB_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*")


def hide_credentials(text: str) -> str:
    """The text with `***` in place of the user and password of each address in it, and of the webhook's address."""
    for override in WEBHOOK.finditer(text):
        # Hydra says again which part of an override it cannot read.
        for address in WEB_ADDRESS.findall(override.group()):
            text = text.replace(address.rstrip("'\":,]}"), HIDDEN)
    return WEBHOOK.sub(rf"\1{HIDDEN}", USER_INFO.sub(f"{HIDDEN}@", text))


def shown_value(key: str, value: object) -> object:
    """The value as messages may show it: `***` of a webhook's address, and of a variable of jobs."""
    return HIDDEN if key == SECRET_KEY or f"{key}.".startswith("slurm.environment.") else value


def has_hidden_variables(override: str) -> bool:
    """True if it gives variables of jobs what stands for values that are hidden."""
    return OF_ENVIRONMENT.fullmatch(override) is not None and HIDDEN in override


def without_credentials(address: str) -> str:
    """The address as anybody may see it."""
    return USER_INFO.sub("", address)


def is_web_address(text: str) -> bool:
    return WEB_ADDRESS.fullmatch(text) is not None


def overrides_for_records(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides as records keep them: without the webhook, passwords in addresses, and values of variables."""
    return tuple(without_credentials(hide_variables(text)) for text in overrides if not WEBHOOK.search(text))


def hide_variables(override: str) -> str:
    """The override with `***` in place of what it gives variables of jobs; any other is returned as it is."""
    match = OF_ENVIRONMENT.fullmatch(override)
    if match is None:
        return override
    key, value = match.groups()
    is_mapping = value.lstrip().startswith("{")
    return f"{key}={PAIR.sub(SHOWN_PAIR, value) if is_mapping else HIDDEN}"


def shown_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration as it may be shown: the address of a webhook and values of variables are hidden."""
    public, notify, slurm = dict(tree), tree.get("notify"), tree.get("slurm")
    if isinstance(notify, dict) and notify.get("url") is not None:
        public["notify"] = {**notify, "url": HIDDEN}
    if isinstance(slurm, dict) and slurm.get("environment"):
        public["slurm"] = {**slurm, "environment": dict.fromkeys(slurm["environment"], HIDDEN)}
    return public
