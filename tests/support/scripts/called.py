"""Calls a script by its name, from the folder of any release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.lua import Script


def called(script: Script, keys: Sequence[bytes], **given: Any) -> Call[Any]:
    """Returns the call of a script; TypeError for a wrong, missing or extra name."""
    script.check_keys(keys)
    rest = given.pop(script.rest, ()) if script.rest else ()
    given.setdefault("now", "") if "now" in script.params else None
    if given.keys() != set(script.params):
        raise TypeError(f"{script.name} takes {', '.join(script.params)}; got {', '.join(given)}")
    return Call(script, keys, [*(given[name] for name in script.params), *rest], _raw)


def _raw(said: Any) -> Any:
    return said
