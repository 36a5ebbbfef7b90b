"""Writes what follows from the table of options as text: `make generate`.

That is src/fairlane/option_types.py, and the table in docs/reference/settings.md.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane import options_table, settings
from fairlane.options_table import (
    DURATION,
    FLAG,
    KEY,
    KEYS_OF_CALL,
    LIMITS,
    MOMENT,
    NAMES,
    OPTIONS,
    PAUSE,
    RATE,
    TASKS,
    WHOLE,
    field_of,
    options_of,
    range_text,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.options_table import Option

ROOT = Path(__file__).parents[2]
TYPES = Path(options_table.__file__).with_name("option_types.py")
PAGE = ROOT / "docs" / "reference" / "settings.md"
BEGIN, END = "| option | default | range | meaning |\n", "\n\n"
HEAD = '''"""The types of a request's options, and the fields that Redis stores of them.

Generated from options_table.py by `make generate`: do not edit it. A duration is a number of
seconds, text such as "500ms", "30s", "5m" or "24h", or a timedelta.
"""

from __future__ import annotations

from collections.abc import (  # noqa: TC003  typing.get_type_hints reads these
    Callable,
    Iterable,
    Mapping,
)
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from fairlane import settings
from fairlane.common.rate import Rate  # noqa: TC001
from fairlane.common.xid import Key  # noqa: TC001

Duration = float | str | timedelta
'''
TYPE = {
    WHOLE: "int",
    DURATION: "Duration",
    PAUSE: "Duration | tuple[Duration, Duration]",
    MOMENT: "datetime | str",
    NAMES: "str | Iterable[str]",
    FLAG: "bool",
    KEY: "bool | Key",
    LIMITS: "Mapping[str, int]",
    KEYS_OF_CALL: "Mapping[str, int] | Callable[..., Mapping[str, int]]",
    TASKS: "str | Iterable[str] | Mapping[str, int]",
}
STORED = {
    WHOLE: "int",
    DURATION: "int",
    PAUSE: "tuple[int, int]",
    MOMENT: "int",
    RATE: "tuple[Rate, ...]",
    NAMES: "tuple[str, ...]",
    FLAG: "bool",
    KEY: "bool",
    LIMITS: "tuple[tuple[str, int], ...]",
}
NONE = {DURATION: "0", MOMENT: "0", RATE: "()", NAMES: "()", FLAG: "False", KEY: "False"}
NONE[LIMITS] = "()"
CLASSES = (
    ("SharedOptions", "The options that the requests of one call share", ("many",)),
    ("ScheduleOptions", "The options of the requests of a schedule", ("schedule",)),
    ("StepOptions", "The options of the request of a step of a flow", ("step",)),
    ("TaskOptions", "The options of a task", ("registration", "task")),
    ("CallOptions", "The options of the request of one call of a task", ("task", "call")),
    ("ChangeOptions", "The options that can be changed of a request", ("set",)),
)


def types_text() -> str:
    """Returns the text of option_types.py."""
    parts = [HEAD, _types("RequestOptions", "The options of a request", OPTIONS)]
    parts += [_types(name, says, options_of(*places)) for name, says, places in CLASSES]
    return _formatted("\n\n".join([*parts, _fields()]))


def _types(name: str, says: str, options: Iterable[Option]) -> str:
    lines = [f"class {name}(TypedDict, total=False):", f'    """{says}; each may be left out.', ""]
    lines.append("    Attributes:")
    for option in options:
        within = f" ({range_text(option)})." if range_text(option) else "."
        text = f"{option.name}: {option.sentence.removesuffix('.')}{within}"
        indents = {"initial_indent": " " * 8, "subsequent_indent": " " * 12}
        lines += textwrap.wrap(text, 100, **indents)  # type: ignore[arg-type]
    lines += ['    """', ""]
    lines += [f"    {option.name}: {TYPE.get(option.kind, 'str')}" for option in options]
    return "\n".join(lines) + "\n"


def _fields() -> str:
    lines = [
        "@dataclass(frozen=True, slots=True, kw_only=True)",
        "class PolicyFields:",
        '    """The fields of a policy that are options; times are in ms."""',
        "",
        "    queue: str = settings.DEFAULT_QUEUE",
    ]
    lines += [
        f"    {field}: {STORED.get(option.kind, 'str')} = {_default(option)}"
        for option in OPTIONS
        if (field := field_of(option))
    ]
    return "\n".join(lines) + "\n"


def _default(option: Option) -> str:
    given = option.default
    if given is None:
        return NONE.get(option.kind, '""')
    if option.kind == PAUSE:
        low, high = settings.duration_range_ms(given)
        return f"({low:_}, {high:_})"
    return f"{settings.duration_ms(given):_}" if option.kind == DURATION else repr(given)


def _formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    words = [str(ruff), "format", "--stdin-filename", str(TYPES), "-"]
    ended = subprocess.run(words, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
    return str(ended.stdout)


def page_text(page: str) -> str:
    """Returns the page of settings with the table of options."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    rows = ["|---|---|---|---|", *map(_row, OPTIONS)]
    return before + begin + "\n".join(rows) + end + after


def _row(option: Option) -> str:
    default = "" if option.default is None else f"{shown(option.default)} {option.unit}".strip()
    within = range_text(option).replace("|", "\\|")
    return f"| `{option.name}` | {default} | {within} | {option.sentence} |"


def main() -> None:
    """Writes both files."""
    TYPES.write_text(types_text())
    PAGE.write_text(page_text(PAGE.read_text()))


if __name__ == "__main__":
    main()
