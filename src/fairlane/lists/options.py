"""The options of a fan-out, from the command line and from a config file such as mpush read."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.errors import InvalidArgument, type_of
from fairlane.operations.lists import Route
from fairlane.protocol.list_keys import Namespace, check_list, pending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.operations.lists import To

MOST_OUTS = 1_000
LONGEST_S = 366 * 86_400
MOST_SERVICES = 10_000


@dataclass(frozen=True)
class FanoutOptions:
    """What a fan-out does; the times are whole seconds.

    `pop_timeout` is how long it may take to end after SIGTERM. `namespace` "" = neither services
    nor messages are recorded. `message_timeout` 0 = messages are not tracked. The other defaults
    are those of mpush. Raises InvalidArgument.
    """

    source: str
    outs: tuple[str, ...]
    pending: str = ""
    to: To = "all"
    pop_timeout: int = 10
    namespace: str = ""
    service_expire: int = 60
    service_renew: int = 15
    service_capacity: int = 10
    message_timeout: int = 0
    message_expire: int = 0
    metrics_interval: int = 60

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_numbers()
        if self.message_timeout and not self.namespace:
            raise InvalidArgument(
                f"messageTimeout {self.message_timeout} needs a namespace: name one for the ids"
            )
        if self.message_timeout and self.expire_of_message <= self.message_timeout:
            raise InvalidArgument(
                f"messageExpire {self.message_expire} is not valid: it must be longer than "
                f"messageTimeout {self.message_timeout}, or no timeout is seen"
            )
        if self.namespace and self.service_renew >= self.service_expire:
            raise InvalidArgument(
                f"serviceRenew {self.service_renew} is not valid: it must be shorter than "
                f"serviceExpire {self.service_expire}"
            )

    def _check_lists(self) -> None:
        check_list("list", self.source)
        if not self.outs:
            raise InvalidArgument("a fan-out needs at least one list for its messages: name --out")
        if len(self.outs) > MOST_OUTS:
            raise InvalidArgument(
                f"{len(self.outs):,} lists are too many: at most {MOST_OUTS:,} get the messages"
            )
        kinds = {self.route.source: "in"}
        for kind, name in [("pending", self.route.pending), *(("out", one) for one in self.outs)]:
            check_list(f"{kind} list", name)
            if name in kinds:
                raise InvalidArgument(
                    f"list {name} is both {kinds[name]} and {kind}: "
                    f"name different lists, or its messages come again for ever"
                    if kinds[name] != kind
                    else f"list {name} is named twice: name each list once"
                )
            kinds[name] = kind
        if self.namespace:
            check_list("namespace", self.namespace)
            for name in self.route.names:
                if Namespace(self.namespace).has(name):
                    raise InvalidArgument(
                        f"list {name} is a key of namespace {self.namespace}, which records "
                        "services and messages there: name another list or another namespace"
                    )

    def _check_numbers(self) -> None:
        most = {"service_capacity": MOST_SERVICES}
        least = {"service_capacity": 0, "message_timeout": 0, "message_expire": 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type != "int":
                continue
            low, high = least.get(field.name, 1), most.get(field.name, LONGEST_S)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidArgument(
                    f"{_IN_FILE[field.name]} {value!r} is not valid: "
                    f"a whole number from {low} to {high} is expected"
                )

    @property
    def route(self) -> Route:
        """Returns the lists."""
        return Route(self.source, self.pending or pending(self.source), self.outs, self.to)

    @property
    def space(self) -> Namespace | None:
        """Returns the keys of the namespace, or None."""
        return Namespace(self.namespace) if self.namespace else None

    @property
    def expire_of_message(self) -> int:
        """Returns the seconds until a tracked message's hashes are deleted."""
        return self.message_expire or 6 * self.message_timeout


# What the file calls each option. The first names are those of mpush.
_IN_FILE = {
    "source": "in",
    "outs": "out",
    "pending": "pending",
    "to": "to",
    "pop_timeout": "popTimeout",
    "namespace": "serviceNamespace",
    "service_expire": "serviceExpire",
    "service_renew": "serviceRenew",
    "service_capacity": "serviceCapacity",
    "message_timeout": "messageTimeout",
    "message_expire": "messageExpire",
    "metrics_interval": "metricsInterval",
}
_FROM_FILE = {name: option for option, name in _IN_FILE.items()} | {"redisNamespace": "namespace"}
_REDIS = "redis"
_ELSEWHERE = "serviceRedis"


def read_config(path: str) -> tuple[dict[str, Any], str | None]:
    """Returns the options of a config file, and the Redis that it names. Raises InvalidArgument."""
    if path.endswith(".js"):
        raise InvalidArgument(
            f"config {path} is a program: write what it exports as JSON, in a file that ends in "
            ".json"
        )
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"config {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"config {path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"config {path} is {type_of(found)}: an object is expected")
    options: dict[str, Any] = {}
    for name, value in found.items():
        if name in _FROM_FILE:
            options[_FROM_FILE[name]] = _checked(path, name, value)
        elif name == _ELSEWHERE:
            raise InvalidArgument(
                f"config {path}: {_ELSEWHERE} is not possible: one script changes lists and "
                "records, so they are on one Redis"
            )
        elif name != _REDIS:
            raise InvalidArgument(f"config {path} has an unknown key {name!r}{_hint(name)}")
    redis = found.get(_REDIS)
    return options, None if redis is None else str(_checked(path, _REDIS, redis))


def _hint(name: str) -> str:
    known = [*_FROM_FILE, _REDIS]
    near = get_close_matches(name, known, n=1)
    return f": did you mean {near[0]}?" if near else f": it may have {', '.join(known)}"


def _checked(path: str, name: str, value: Any) -> Any:
    """Returns a value of the right type. Raises InvalidArgument."""
    if name == "out":
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        expected = "a list of texts"
    elif name == "to":
        if value in {"all", "shortest"}:
            return value
        expected = '"all" or "shortest"'
    elif name in {"in", "pending", _REDIS, "serviceNamespace", "redisNamespace"}:
        if isinstance(value, str):
            return value
        expected = "a text"
    else:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        expected = "a whole number of seconds" if name != "serviceCapacity" else "a whole number"
    raise InvalidArgument(f"config {path}: {name} {value!r} is not valid: {expected} is expected")


def fanout_options(given: Mapping[str, Any], config: Mapping[str, Any]) -> FanoutOptions:
    """Returns the options of a config file, changed by those given. Raises InvalidArgument."""
    merged = {**config, **given}
    for option, name in (("source", "--in"), ("outs", "--out")):
        if not merged.get(option):
            raise InvalidArgument(f"a fan-out needs {name} LIST, or a config file that names it")
    return FanoutOptions(merged.pop("source"), merged.pop("outs"), **merged)
