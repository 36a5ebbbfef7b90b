"""Reads what a user writes in `.option(...)`, and refuses unknown names and invalid values."""

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


class SparkOptions:
    """Holds options by name, in any case of letters, as Spark passes them.

    `names` are those that this use of the format takes, besides `redis` and `queue`. Raises
    InvalidArgument for any other, with the nearest valid name.
    """

    def __init__(self, spark_options: Mapping[str, str], names: Iterable[str]) -> None:
        right = {name.lower(): name for name in (*COMMON, *names)}
        self._values: dict[str, str] = {}
        # CREATE TABLE prefixes the names of options.
        if any(name.startswith("option.") for name in spark_options):
            raise InvalidArgument(f"the format fairlane makes no tables: {NO_CATALOG}")
        for name, value in spark_options.items():
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
        """Returns the value, or `default`."""
        return self._values.get(name, default)

    def required(self, name: str, why: str) -> str:
        """Returns the value. Raises InvalidArgument with `why` if it is missing."""
        value = self._values.get(name, "")
        if not value:
            raise InvalidArgument(f'option "{name}" is missing: {why}')
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**53) -> int:
        """Returns the value as an integer from `low` to `high`. Raises InvalidArgument."""
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
        """Returns the value as a bool. Raises InvalidArgument."""
        text = self._values.get(name)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            raise InvalidArgument(f'option "{name}" is {text!r}: true or false is expected')
        return _FLAGS[text.lower()]

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Returns the value, one of `choices`. Raises InvalidArgument."""
        text = self._values.get(name, default)
        if text not in choices:
            near = _nearest(text, choices)
            raise InvalidArgument(
                f'option "{name}" is {text!r}: one of {", ".join(choices)} is expected{near}'
            )
        return text

    @property
    def redis(self) -> str:
        """Returns the URL of Redis: the option, else FAIRLANE_REDIS. Raises InvalidArgument.

        The embedded server is never a default, because executors may be on other machines.
        """
        url = settings.redis_url(self._values.get("redis"))
        if not url:
            raise InvalidArgument(
                f'option "redis" is missing: name a URL, or set {settings.REDIS_VARIABLE}'
            )
        return url

    @property
    def queue(self) -> str:
        """Returns the queue's name."""
        return self._values.get("queue", settings.DEFAULT_QUEUE)


def _unknown(name: str, right: list[str]) -> str:
    near = _nearest(name, right)
    return f'option "{name}" is not known{near or "."} The options are {", ".join(right)}'


def _nearest(text: str, right: Iterable[str]) -> str:
    by_lower = {option.lower(): option for option in right}
    matches = get_close_matches(text.lower(), by_lower, 1, 0.5)
    return f": did you mean {by_lower[matches[0]]}?" if matches else ""
