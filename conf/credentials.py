"""User names and passwords inside addresses, such as `https://user:password@host`: used, but neither kept nor shown."""

from __future__ import annotations

import re

USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""What stands between the scheme and the host of an address."""


def hide_credentials(text: str) -> str:
    """The text with `***` in place of the user and password of each address in it."""
    return USER_INFO.sub("***@", text)


def without_credentials(address: str) -> str:
    """The address as anybody may see it."""
    return USER_INFO.sub("", address)
