"""Where the file of bearer tokens is."""

from __future__ import annotations

import os
from pathlib import Path

from fairlane.embedded.home import find_place

VARIABLE = "FAIRLANE_TOKENS"


def is_named(given: str | None) -> bool:
    """Returns True if the caller or FAIRLANE_TOKENS names a file."""
    return bool(given or os.environ.get(VARIABLE))


def tokens_path(given: str | None) -> Path:
    """Returns the file that the caller or FAIRLANE_TOKENS names, else the one of this user."""
    named = given or os.environ.get(VARIABLE)
    return Path(named) if named else find_place(None).home / "tokens.json"
