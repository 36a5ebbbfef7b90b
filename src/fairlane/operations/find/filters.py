"""Which requests a list shows: by state, priority, age, tag, tenant and the beginning of the id."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fairlane.common.clock import ms_of
from fairlane.common.text import exact
from fairlane.errors import InvalidArgument
from fairlane.found import ENDED, RUNNING, STATE_GROUPS, RequestFilters
from fairlane.options import check_priority
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from typing import Any, Unpack

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{0,128}")

_OLDEST_S = 10**12  # more is no age
_NAMES = RequestFilters.__optional_keys__


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """The checked filters; an empty set excludes nothing."""

    states: frozenset[str] = frozenset()
    priorities: frozenset[int] = frozenset()
    id_prefix: str = ""
    older_ms: int = 0
    newer_ms: int | None = None
    tags: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()

    @property
    def reads_labels(self) -> bool:
        """Returns True if tags or the tenant decide, which only the request's hash has."""
        return bool(self.tags or self.tenants)

    def accepts_labels(self, tags: str, tenant: str) -> bool:
        """Returns True if a request with these tags, with commas between them, is listed."""
        return self.tags.issubset(tags.split(",")) and (not self.tenants or tenant in self.tenants)

    def wants_any(self, states: tuple[str, ...]) -> bool:
        """Returns True if requests in one of these states are listed."""
        return not self.states or not self.states.isdisjoint(states)

    def accepts(
        self, request_id: str, state: str, priority: int, submitted_ms: int, now_ms: int
    ) -> bool:
        """Returns True if this request is listed."""
        age_ms = now_ms - submitted_ms
        return (
            (not self.states or state in self.states)
            and (not self.priorities or priority in self.priorities)
            and request_id.startswith(self.id_prefix)
            and age_ms >= self.older_ms
            and (self.newer_ms is None or age_ms < self.newer_ms)
        )


def filter_of(**wanted: Unpack[RequestFilters]) -> RequestFilter:
    """Returns the filter. Raises InvalidArgument, and TypeError for a wrong name."""
    given: dict[str, Any] = dict(wanted)
    for name in given:
        if name not in _NAMES:
            raise TypeError(f"filter {name} is not valid: {', '.join(sorted(_NAMES))} are known")
    older_ms = _age_ms("older_s", given.get("older_s")) or 0
    newer_ms = _age_ms("newer_s", given.get("newer_s"))
    if newer_ms is not None and older_ms >= newer_ms:
        raise InvalidArgument(
            f"older {exact(older_ms / 1000)} s and newer {exact(newer_ms / 1000)} s exclude each "
            "other: no request is older than the first and newer than the second"
        )
    prefix = given.get("id_prefix", "")
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidArgument(
            f"beginning of an id {prefix!r} is not valid: ids have letters, digits and _ . : -"
        )
    return RequestFilter(
        states=frozenset(state for word in _each(given, "states") for state in _states_of(word)),
        priorities=frozenset(map(check_priority, _each(given, "priorities"))),
        id_prefix=prefix,
        older_ms=older_ms,
        newer_ms=newer_ms,
        tags=frozenset(check_name("tag", tag) for tag in _each(given, "tags")),
        tenants=frozenset(check_name("tenant", name) for name in _each(given, "tenants")),
    )


def _each(given: dict[str, Any], name: str) -> Iterable[Any]:
    values = given.get(name, ())
    if isinstance(values, (str, int)):
        return (values,)
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} {values!r} is not valid: give one, or a list")
    return values


def _states_of(word: object) -> tuple[str, ...]:
    known = [*STATE_GROUPS, *RUNNING, *ENDED]
    if not isinstance(word, str) or word not in known:
        near = get_close_matches(str(word), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the states are {', '.join(known)}"
        raise InvalidArgument(f"state {word!r} is not valid: {hint}")
    return STATE_GROUPS.get(word, (word,))


def _age_ms(name: str, seconds: object) -> int | None:
    if seconds is None:
        return None
    found = ms_of(name, seconds)  # type: ignore[arg-type]  # it checks
    if not 0 <= found <= _OLDEST_S * 1000:
        raise InvalidArgument(f"{name} {seconds!r} is not valid: 0 to {_OLDEST_S:,} s is expected")
    return found
