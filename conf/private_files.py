"""Who may read what the commands and their jobs write."""

from __future__ import annotations

import os

OTHERS = 0o077  # all permissions of everybody but the owner


def keep_private() -> None:
    """From now on nobody but the user may read or write what this process and its children create.

    An output folder holds programs that run as the user, so that whoever can write there can act as the user. To
    share a folder, change its mode: files and folders that exist keep the mode that they have.
    """
    os.umask(OTHERS)
