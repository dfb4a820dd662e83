"""Secrets of the configuration: used, but neither kept nor shown.

They are the user names and passwords inside addresses, such as `https://user:password@host`, and the whole address of a
webhook (`notify.url`), whose path is its password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN, SECRET_KEY = "***", "notify.url"
USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""What stands between the scheme and the host of an address."""

WEBHOOK = re.compile(r"(notify\.url=)\S+")
"""The override that names a webhook, wherever a text quotes it."""

WEB_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*")


def hide_credentials(text: str) -> str:
    """The text with `***` in place of the user and password of each address in it, and of the webhook's address."""
    for override in WEBHOOK.finditer(text):
        # Hydra says again which part of an override it cannot read.
        for address in WEB_ADDRESS.findall(override.group()):
            text = text.replace(address.rstrip("'\":,]}"), HIDDEN)
    return WEBHOOK.sub(rf"\1{HIDDEN}", USER_INFO.sub(f"{HIDDEN}@", text))


def without_credentials(address: str) -> str:
    """The address as anybody may see it."""
    return USER_INFO.sub("", address)


def is_web_address(text: str) -> bool:
    return WEB_ADDRESS.fullmatch(text) is not None


def recorded(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides as records keep them: without the webhook, and without passwords in addresses."""
    return tuple(without_credentials(text) for text in overrides if not WEBHOOK.search(text))


def shown_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration as it may be shown: the address of a webhook is hidden."""
    notify = tree.get("notify")
    if not isinstance(notify, dict) or notify.get("url") is None:
        return dict(tree)
    return {**tree, "notify": {**notify, "url": HIDDEN}}
