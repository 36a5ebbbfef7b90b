"""Restores a FairlaneError that Spark passes on as the text of a traceback."""

from __future__ import annotations

import re

from fairlane import errors
from fairlane.errors import FairlaneError

_OURS = re.compile(r"^(?:.*?\s)?fairlane\.[\w.]+\.([A-Z]\w+): (.+?)\s*$", re.MULTILINE)


def ours(error: BaseException) -> FairlaneError | None:
    """Returns the last FairlaneError in a Spark error; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FairlaneError):
            return seen
        seen = seen.__cause__ or seen.__context__
    matches = _OURS.findall(str(error))
    if not matches:
        return None
    name, sentence = matches[-1]
    kind = _kind(name)
    return None if kind is None else kind(sentence)


def _kind(name: str) -> type[FairlaneError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, FairlaneError) else None
