"""An error of ours that comes back from Spark as the text of a traceback, as itself again."""

from __future__ import annotations

import re

from fairlane import errors
from fairlane.errors import FairlaneError

_OURS = re.compile(r"^(?:.*?\s)?fairlane\.[\w.]+\.([A-Z]\w+): (.+?)\s*$", re.MULTILINE)


def ours(error: BaseException) -> FairlaneError | None:
    """The FairlaneError that an error of Spark's tells of, the last one; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FairlaneError):
            return seen
        seen = seen.__cause__ or seen.__context__
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    kind = _kind(name)
    return None if kind is None else kind(sentence)


def _kind(name: str) -> type[FairlaneError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, FairlaneError) else None
