"""The tasks of a request as its producer names them, and the task that a body calls.

Redis has them in one text. If all sub-requests call one task, it is the name. Otherwise it is name
and count in turn, with tabs between them. An empty count means that it was not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairlane.errors import InvalidArgument

MOST_NAMED = 20  # tasks of one request; the calls of further ones are counted together
OTHER = "other"  # what counts them
START = 840  # bytes of a body that hold the name of its task
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_JSON_NAME = re.compile(rb'\s*\[\s*\d+\s*,\s*("(?:[^"\\]|\\.)*")')
_FIXED, _STR8, _STR16 = range(0xA0, 0xC0), 0xD9, 0xDA  # how a text begins in MessagePack
_ARRAYS = (0x93, 0x94)  # of three and of four values
_FIRST = 2  # where the second value of such an array begins
_SEPARATOR = "\t"

Tasks = dict[str, int | None]  # task -> how many sub-requests call it, None = not known


def check_task(name: object) -> str:
    """Returns the name of a task. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"task name {name!r:.80} is not valid: 1 to 200 printable characters are expected"
        )
    return name


def tasks_text(given: object) -> str:
    """Returns the text of the tasks of a request. Raises InvalidArgument.

    `given` is the one task that all sub-requests call, several tasks, or task -> how many
    sub-requests call it. Of more than 20 tasks those with most calls are kept.
    """
    if isinstance(given, str):
        return check_task(given) if given else ""
    if isinstance(given, Mapping):
        counts: dict[str, Any] = {check_task(name): count for name, count in given.items()}
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InvalidArgument(
                    f"task {name} has the count {count!r}: a whole number from 1 is expected"
                )
        chosen = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_NAMED]
    elif isinstance(given, Iterable) and not isinstance(given, bytes):
        names = tuple(dict.fromkeys(map(check_task, given)))
        return names[0] if len(names) == 1 else some_tasks(names)
    else:
        raise InvalidArgument(f"task {given!r:.80} is not valid: give its name, or several names")
    return _SEPARATOR.join(f"{name}{_SEPARATOR}{counts[name]}" for name in chosen)


def some_tasks(names: Iterable[str]) -> str:
    """Returns the text of tasks that some of the sub-requests call; of more than 20 the first."""
    chosen = dict.fromkeys(names)
    return _SEPARATOR.join(f"{name}{_SEPARATOR}" for name in list(chosen)[:MOST_NAMED])


def without_counts(text: str) -> str:
    """Returns the text of the tasks for a part of the sub-requests."""
    return some_tasks(task_names(text)) if _SEPARATOR in text else text


def task_names(text: str) -> tuple[str, ...]:
    """Returns the names in a text of tasks."""
    return tuple(text.split(_SEPARATOR)[::2]) if text else ()


def certain_tasks(text: str) -> tuple[str, ...]:
    """Returns the tasks of a text that names every task; () if there may be others."""
    parts = text.split(_SEPARATOR) if text else []
    is_whole = len(parts) == 1 or (len(parts) < 2 * MOST_NAMED and all(parts[1::2]))
    return tuple(parts[::2]) if is_whole else ()


def count_task(tasks: dict[str, int], name: str, count: int = 1) -> None:
    """Counts calls of a task; beyond 20 tasks as those of OTHER."""
    if name not in tasks and len(tasks) >= MOST_NAMED:
        name = OTHER
    tasks[name] = tasks.get(name, 0) + count


def read_tasks(text: str, total: int) -> Tasks:
    """Returns the tasks in a text, of a request that has `total` sub-requests.

    What its producer did not count is counted as OTHER.
    """
    if not text:
        return {}
    if _SEPARATOR not in text:
        return {text: total}
    parts = text.split(_SEPARATOR)
    found: Tasks = {
        name: int(count) if count.isdecimal() else None
        for name, count in zip(parts[::2], parts[1::2], strict=False)
    }
    known = [count for count in found.values() if count is not None]
    if len(known) == len(found) and (left := total - sum(known)) > 0:
        found[OTHER] = (found.get(OTHER) or 0) + left
    return found


def tasks_words(tasks: Mapping[str, int | None], most: int = 3) -> str:
    """Returns tasks for people: `resize`, or `resize (30), send_mail (2) and 4 more`."""
    if len(tasks) == 1:  # the counts of the request have its number
        return next(iter(tasks))
    shown = [name if count is None else f"{name} ({count:,})" for name, count in tasks.items()]
    more = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def task_of(start: bytes) -> str:
    """Returns the task that a body calls, given its first START bytes; "" if it is no call."""
    if start[:1] and start[0] in _ARRAYS:
        return _packed_name(start)
    match = _JSON_NAME.match(start)
    if match is None:
        return ""
    try:
        return str(json.loads(match[1]))
    except ValueError:
        return ""


def _packed_name(start: bytes) -> str:
    head = start[_FIRST] if len(start) > _FIRST else 0
    if head in _FIXED:
        begin, length = _FIRST + 1, head - _FIXED[0]
    elif head in {_STR8, _STR16}:
        begin = _FIRST + (2 if head == _STR8 else 3)
        length = int.from_bytes(start[_FIRST + 1 : begin])
    else:
        return ""
    name = start[begin : begin + length]
    return name.decode("utf-8", "replace") if len(name) == length else ""
