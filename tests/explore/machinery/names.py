"""Makes canonical texts: two states are one if they differ only in names, times and ids.

A state's text is put together from the texts of its keys and actors, which repeat from state to
state. So each text is taken apart once, into what stays (a number stands for it) and what is
renamed (fences, ops, times, scores), and a state's digest needs no text at all.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.protocol.steps import Arg, Call

_TIME = r"1[67]\d{11}"
_RENAMED = re.compile(
    rf"\bS(?P<score>{_TIME}(?:\.5)?)\b"  # a score of `active`: it is compared with others
    rf"|\b(?P<entry>{_TIME}-\d+)\b"  # of a stream: distinct, and its number counts
    rf"|\b(?P<time>{_TIME})\b"
    r"|\b(?P<second>1[67]\d{8})\b"  # the reply of TIME
    # A generation, a fence or an op: compared for equality, never ordered.
    rf"|\b(?P<name>7\d{{6}}|{_TIME}\d{{3}}|[0-9a-f]{{32}})\b"
)
_PAST, _NOW, _SOON = 0, 1, 2
_SCORES = {"seen", "intent", "above"}  # arguments that a script compares with those of `active`


def scored(call: Call[Any]) -> list[Arg]:
    """Returns the arguments of a call, with its scores marked as such."""
    args = list(call.args)
    for i, name in enumerate(call.script.params):
        if name in _SCORES:
            args[i] = _marked(args[i])
    if (
        call.script.name == "reschedule_active"
    ):  # rows of a request, the score that was seen, and the next
        args[1::3] = [_marked(score) for score in args[1::3]]
    if call.script.name == "move_tick":  # each tick is another one, whether it has passed or not
        args[3:5] = [_distinct(tick) for tick in args[3:5]]
    return args


def _distinct(tick: Arg) -> str:
    return f"tick {int(tick) // 1000 if tick else ''}"


def _marked(score: Arg) -> str:
    text = score.decode() if isinstance(score, bytes) else str(score)
    return f"S{text}"


class Template:
    """A text, separated into its fixed part and its names."""

    __slots__ = ("_when", "names", "scores", "static", "times")

    def __init__(
        self, static: int, names: Iterable[str], times: Iterable[int], scores: Iterable[float]
    ) -> None:
        self.static = static
        self.names, self.times, self.scores = tuple(names), tuple(times), tuple(scores)
        self._when: dict[int, bytes] = {}

    def when(self, now: int) -> bytes:
        """Returns whether each time is in the past, now, or to come.

        No decision asks more, because the clock only moves by steps longer than every delay.
        """
        found = self._when.get(now)
        if found is None:
            found = bytes(_when(moment, now) for moment in (*self.times, *self.scores))
            self._when[now] = found
        return found


def _when(moment: float, now: int) -> int:
    if moment == now:
        return _NOW
    return _PAST if moment < now else _SOON


class Namer:
    """Separates texts into fixed parts and names, and digests their combination."""

    def __init__(self) -> None:
        self._statics: dict[object, int] = {}
        self._templates: dict[str, Template] = {}

    def number(self, static: object) -> int:
        return self._statics.setdefault(static, len(self._statics))

    def template(self, text: str) -> Template:
        found = self._templates.get(text)
        if found is None:
            names: list[str] = []
            times: list[int] = []
            scores: list[float] = []

            def rename(match: re.Match[str]) -> str:
                kind = match.lastgroup
                if kind == "name":
                    names.append(match["name"])
                elif kind == "time":
                    times.append(int(match["time"]))
                elif kind == "second":
                    times.append(int(match["second"]) * 1000)
                elif kind == "score":
                    scores.append(float(match["score"]))
                else:
                    names.append(match["entry"])
                    return f"#{match['entry'].partition('-')[2]}"
                return f"<{kind}>"

            static = self.number(_RENAMED.sub(rename, text))
            found = self._templates[text] = Template(static, names, times, scores)
        return found

    def joined(self, parts: Sequence[Template]) -> Template:
        return Template(
            self.number(tuple(part.static for part in parts)),
            chain.from_iterable(part.names for part in parts),
            chain.from_iterable(part.times for part in parts),
            chain.from_iterable(part.scores for part in parts),
        )


def digest(parts: Sequence[Template], extra: Sequence[int], now: int) -> bytes:
    """Returns a digest that two states share exactly if they are one."""
    numbers = [*extra]
    order: dict[str, int] = {}
    scores: list[float] = []
    for part in parts:
        numbers.append(part.static)
        numbers += [order.setdefault(name, len(order)) for name in part.names]
        scores += part.scores
    if scores:
        ranks = {score: rank for rank, score in enumerate(sorted(set(scores)))}
        numbers += [ranks[score] for score in scores]
    text = array("I", numbers).tobytes() + b"".join([part.when(now) for part in parts])
    return hashlib.blake2b(text, digest_size=12).digest()
