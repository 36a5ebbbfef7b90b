"""Runs every service over lists: reads its options, connects, ends on a signal, logs."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote

from redis.crc import key_slot

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers import urls
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument, RedisFull, RedisUnreachable, type_of
from fairlane.operations.lists import Route
from fairlane.protocol.keys import Namespace, check_list, pending
from fairlane.worker.log import Repeats
from fairlane.worker.termination import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairlane.operations.lists import To


# ------------------------------------------------------------------ addresses
# Reads `URL/list`: a list on a Redis.


class ListAddress(NamedTuple):
    """A list, and the URL of its Redis."""

    url: str
    name: str

    @property
    def shown(self) -> str:
        """Returns `URL/list` without the password."""
        return f"{urls.hide_secret(self.url)}/{self.name}"

    @property
    def database(self) -> int:
        """Returns the number of the database."""
        target = urls.read(self.url)
        last = target.rest.rstrip("/").rpartition("/")[2]
        if "db" in target.options:
            return int(target.options["db"])
        return int(last) if last.isdigit() else 0


def list_address(option: str, text: str) -> ListAddress:
    """Reads `redis://host:6379/0/orders`: the last part of the path is the list.

    A slash in a list's name is %2F. Raises InvalidArgument, which shows no password.
    """
    rest, mark, query = text.partition("?")
    scheme, separator, path = rest.partition("://")
    url, slash, name = path.rpartition("/")
    if not separator or not slash or not name or not url:
        raise InvalidArgument(
            f"{option} names no list: write the list behind the URL, as in "
            "redis://host:6379/0/orders"
        )
    if name.isdigit() and "/" not in url and "+" not in scheme:
        raise InvalidArgument(
            f"{option} ends in the number {name}, and names no list: write the list behind it, as "
            f"in /{name}/orders"
        )
    url = f"{scheme}://{url}{mark}{query}"
    urls.read(url)
    return ListAddress(url, check_list(f"{option} list", unquote(name, errors="surrogateescape")))


# ------------------------------------------------------------------ slots
# Refuses lists that no single script can change.


def is_one_slot(keys: Sequence[bytes]) -> bool:
    """Returns True if all keys are in one hash slot of a cluster."""
    return len({key_slot(key) for key in keys}) == 1


def check_one_slot(driver: SyncDriver, keys: Sequence[bytes]) -> None:
    """Raises InvalidArgument if the server is a cluster and the keys are in several slots."""
    if not driver.is_cluster or is_one_slot(keys):
        return
    first = keys[0]
    other = next(key for key in keys if key_slot(key) != key_slot(first))
    names = " and ".join(one.decode("utf-8", "replace") for one in (first, other))
    raise InvalidArgument(
        f"lists {names} are in different slots of the cluster: "
        "give all names the same hash tag, such as {orders}:in and {orders}:out"
    )


# ------------------------------------------------------------------ options
# The options of a fan-out, from the command line and from a config file such as mpush read.


MOST_OUTS = 1_000
LONGEST_S = 366 * 86_400
MOST_SERVICES = 10_000


@dataclass(frozen=True)
class FanoutOptions:
    """What a fan-out does; the times are whole seconds.

    `pop_timeout` is how long the end may take after SIGTERM. `namespace` "" = neither services
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


# ------------------------------------------------------------------ service
# Runs a service over lists: ends on a signal, outlasts an outage, logs its figures.


log = logging.getLogger("fairlane.lists")
AGAIN_S = 0.5  # the pause after an error that may pass
BLOCK_S = settings.BLOCK_MS / 1000


def host() -> str:
    """Returns the name of this machine."""
    return socket.gethostname()


class Every:
    """Reports when something is due again. `seconds` 0 = never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = clock.mono_s() + seconds

    def is_due(self) -> bool:
        """Returns True once in each period."""
        now = clock.mono_s()
        if not self._seconds or now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Loop:
    """Repeats a turn until SIGTERM, SIGINT, SIGHUP or `stop`.

    While the loop is entered, a signal ends the loop instead of the process. So a service enters it
    before it registers itself, and leaves it after it has unregistered. A turn returns False to end
    the loop. After an outage, or while Redis is full, the turn is repeated. Any other error ends
    the loop.
    """

    def __init__(self) -> None:
        self._signals: Signals | None = None
        self._is_stopped = False
        self._repeats = Repeats()

    def __enter__(self) -> Self:
        self._signals = Signals().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._signals is not None:
            self._signals.__exit__(*error)

    def stop(self) -> None:
        """Ends the loop after the turn that runs."""
        self._is_stopped = True

    @property
    def is_ending(self) -> bool:
        """Returns True after a signal or `stop`."""
        return self._is_stopped or (self._signals is not None and self._signals.count > 0)

    def driver(self, url: str, patience_s: float = settings.PATIENCE_S) -> SyncDriver:
        """Returns a driver that repeats no call once the loop must end."""
        return SyncDriver(url, patience_s=patience_s, give_up=lambda: self.is_ending)

    def run(self, turn: Callable[[], bool]) -> None:
        """Repeats the turn. Raises its errors, except those that may pass."""
        while not self.is_ending:
            try:
                if not turn():
                    return
            except (RedisUnreachable, RedisFull) as error:
                if not self.is_ending:
                    self._repeats.failed(error)
                    clock.sleep(AGAIN_S)
            else:
                self._repeats.over()
