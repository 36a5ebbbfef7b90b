"""What a user wrote in `.option(...)`: names that are known, and values that make sense."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMMON = ("redis", "queue")
NO_CATALOG = (
    "a table in Spark's catalog keeps no options, so use save(), load() or CREATE TEMPORARY VIEW, "
    "and not saveAsTable, CREATE TABLE or INSERT"
)
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Options:
    """Options by name, in any case of letters, as Spark has them.

    `known` are the names this use of the format takes, besides `redis` and `queue`. Raises
    InvalidArgument for any other, with the nearest right one.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        right = {name.lower(): name for name in (*COMMON, *known)}
        self._values: dict[str, str] = {}
        if any(name.startswith("option.") for name in given):  # Spark's words for CREATE TABLE
            raise InvalidArgument(f"the format fairlane makes no tables: {NO_CATALOG}")
        for name, value in given.items():
            if name.lower() == "path":
                raise InvalidArgument(
                    f"the format fairlane has no path, and {str(value)!r} was given as one: call "
                    'save(), load() or start() without it, and name a request by option("request")'
                )
            if name.lower() not in right:
                raise InvalidArgument(_unknown(name, sorted(right.values())))
            self._values[right[name.lower()]] = str(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """The value, or `default`."""
        return self._values.get(name, default)

    def required(self, name: str, why: str) -> str:
        """The value. Raises InvalidArgument with `why` when it was not given."""
        value = self._values.get(name, "")
        if not value:
            raise InvalidArgument(f'option "{name}" is missing: {why}')
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**53) -> int:
        """The value as a whole number from `low` to `high`. Raises InvalidArgument."""
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise InvalidArgument(
                f'option "{name}" is {text!r}: a whole number from {low:,} to {high:,} is expected'
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """The value as true or false. Raises InvalidArgument."""
        text = self._values.get(name)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            raise InvalidArgument(f'option "{name}" is {text!r}: true or false is expected')
        return _FLAGS[text.lower()]

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """The value, one of `choices`. Raises InvalidArgument."""
        text = self._values.get(name, default)
        if text not in choices:
            near = _nearest(text, choices)
            raise InvalidArgument(
                f'option "{name}" is {text!r}: one of {", ".join(choices)} is expected{near}'
            )
        return text

    @property
    def redis(self) -> str:
        """The URL of Redis: the option, else FAIRLANE_REDIS. Raises InvalidArgument.

        Never the embedded server by itself: executors may be on other machines.
        """
        url = settings.redis_url(self._values.get("redis"))
        if not url:
            raise InvalidArgument(
                f'option "redis" is missing: name a URL, or set {settings.REDIS_VARIABLE}'
            )
        return url

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._values.get("queue", settings.DEFAULT_QUEUE)


def _unknown(name: str, right: list[str]) -> str:
    near = _nearest(name, right)
    return f'option "{name}" is not known{near or "."} The options are {", ".join(right)}'


def _nearest(name: str, right: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in right}
    found = get_close_matches(name.lower(), by_lower, 1, 0.5)
    return f": did you mean {by_lower[found[0]]}?" if found else ""
