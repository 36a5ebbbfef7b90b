"""Draws a run of a flow as SVG: a str without a script, a link, or a font from elsewhere.

Steps that get results of the same step stand side by side. State and counts are text, so that the
picture needs no colour. It is light or dark as its reader's system is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from fairlane.common.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.records import FlowProgress, StepProgress


_WIDTH, _HEIGHT, _GAP, _LEVEL, _MARGIN = 224, 92, 24, 148, 24
_TOP = 64  # below the title
_SHOWN = 26  # characters of a line in a box; the whole text is its tooltip
_LETTER = {"title": 9.5, "name": 9, "": 8, "soft": 7}  # a wide letter of each kind of text
_MARKS = {
    "done": "✓",
    "repaired": "✓",
    "partly_failed": "!",
    "failed": "✕",
    "cancelled": "✕",
    "cancelling": "✕",
    "paused": "❚❚",
    "active": "▶",
}
_ROLES = {"dead": "dead → ", "branch": "branch: ", "chosen": "chosen: ", "join": "joins: "}
_ROLES["merge"] = "merges: "
_XML = "http://www.w3.org/2000/svg"
_ARROW = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)
_STYLE = """
svg { color-scheme: light dark; --page: #ffffff; --text: #1f2933; --soft: #52606d; --box: #f5f7fa;
  --edge: #7b8794; --done: #00796b; --dead: #b3261e; --warn: #8f5600; --bar: #d9e2ec; }
@media (prefers-color-scheme: dark) { svg { --page: #15191e; --text: #e8edf2; --soft: #a7b3bf;
  --box: #222a32; --edge: #8795a1; --done: #4db6ac; --dead: #ff8a80;
  --warn: #f0b450; --bar: #3b4651; } }
.page { fill: var(--page); }
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: var(--text); }
.title { font-size: 16px; font-weight: 600; }
.name { font-size: 14px; font-weight: 600; }
.soft { font-size: 12px; fill: var(--soft); }
.box { fill: var(--box); stroke: var(--edge); stroke-width: 1.5; }
.done, .repaired { stroke: var(--done); }
.cancelled, .cancelling, .failed { stroke: var(--dead); }
.partly_failed { stroke: var(--warn); }
.undo { stroke-dasharray: 6 4; }
.bar { fill: var(--bar); }
.bar-done { fill: var(--done); }
.bar-dead { fill: var(--dead); }
.line { fill: none; stroke: var(--edge); stroke-width: 1.5; }
.tip { fill: var(--edge); }
"""


class _Box(NamedTuple):
    """A step and the place of its upper left corner."""

    step: StepProgress
    x: float
    y: float

    @property
    def middle(self) -> float:
        """Returns where lines begin and end."""
        return self.x + _WIDTH / 2


def svg(run: FlowProgress) -> str:
    """Returns the picture of a run: its steps, what each gets, and what is done in each."""
    rows = _rows(run)
    most = max((len(row) for row in rows), default=1)
    width = max(2 * _MARGIN + most * _WIDTH + (most - 1) * _GAP, 480)
    height = _TOP + max(1, len(rows)) * _LEVEL - (_LEVEL - _HEIGHT) + _MARGIN
    boxes = _placed(rows, width)
    title = f"flow {run.flow}, run {run.id}: {run.shown_state}"
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    parts = [
        f'<svg xmlns="{_XML}" {size} role="img" aria-label={_quoted(title)}>',
        f"<title>{_text(title)}</title><style>{_STYLE}</style>",
        _ARROW,
        '<rect class="page" width="100%" height="100%"/>',
        _label("title", _MARGIN, 36, _short(title, 90), width - 2 * _MARGIN),
        *_lines(boxes),
        *(part for box in boxes.values() for part in _drawn(box)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rows(run: FlowProgress) -> list[list[StepProgress]]:
    """Returns the steps by how many others come before each of them."""
    depth: dict[str, int] = {}
    for one in run.steps:  # each stands behind its sources
        depth[one.step] = max((depth.get(name, -1) for name in one.sources), default=-1) + 1
    rows: list[list[StepProgress]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for one in run.steps:
        rows[depth[one.step]].append(one)
    return [row for row in rows if row]


def _placed(rows: list[list[StepProgress]], width: float) -> dict[str, _Box]:
    boxes = {}
    for level, row in enumerate(rows):
        used = len(row) * _WIDTH + (len(row) - 1) * _GAP
        for place, one in enumerate(row):
            x = (width - used) / 2 + place * (_WIDTH + _GAP)
            boxes[one.step] = _Box(one, x, _TOP + level * _LEVEL)
    return boxes


def _lines(boxes: dict[str, _Box]) -> Iterator[str]:
    for box in boxes.values():
        for name in box.step.sources:
            if name not in boxes:
                continue
            above = boxes[name]
            start, end = above.y + _HEIGHT, box.y - 3
            bend = (start + end) / 2
            kind = "line undo" if box.step.is_compensating else "line"
            yield (
                f'<path class="{kind}" marker-end="url(#tip)" d="M{above.middle:g} {start:g} '
                f'C{above.middle:g} {bend:g} {box.middle:g} {bend:g} {box.middle:g} {end:g}"/>'
            )


def _drawn(box: _Box) -> Iterator[str]:
    """Yields one step: its name, its request and queue, its state, its counts, and a bar."""
    step, now, x, y = box.step, box.step.progress, box.x, box.y
    state = "submitting" if now.is_open and now.state == "active" else now.shown_state
    word = now.outcome or now.state
    mark = _MARKS.get(word, "")
    counts = f"{now.done:,} done, {now.dead:,} dead, {now.total:,} in all"
    role = _ROLES.get(step.gets, "")
    whole = f"{role}{step.step}: {state}; {counts}; queue {now.queue}, request {now.id}"
    kind = f"box {word}" if word in _MARKS else "box"
    kind = "box undo" if step.is_compensating else kind
    yield f"<g><title>{_text(whole)}</title>"
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    yield f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size} rx="8"/>'
    lines = (
        ("name", role + step.step),
        ("soft", f"{now.queue} · {now.id}"),
        ("", f"{mark} {state}".strip()),
        ("soft", counts),
    )
    for place, (kind, text) in enumerate(lines):
        most = _SHOWN if kind == "name" else _SHOWN + 6
        yield _label(kind, x + 12, y + 20 + 18 * place, _short(text, most), _WIDTH - 24)
    yield from _bar(box)
    yield "</g>"


def _bar(box: _Box) -> Iterator[str]:
    """Yields how far a step is; its text says the same in numbers."""
    now, long = box.step.progress, _WIDTH - 24
    at = f'y="{box.y + _HEIGHT - 10:g}" height="4"'
    yield f'<rect class="bar" x="{box.x + 12:g}" {at} width="{long}"/>'
    start = box.x + 12
    for kind, count in (("bar-done", now.done), ("bar-dead", now.dead)):
        part = long * count / max(1, now.total, now.done + now.dead)
        if part:
            shown = math.floor(10 * part) / 10
            yield f'<rect class="{kind}" x="{start:.1f}" {at} width="{shown}"/>'
        start += part


def _label(kind: str, x: float, y: float, text: str, room: float) -> str:
    """Returns one line of text; if it may be wider than its room, it is fitted to that."""
    is_long = len(text) * _LETTER[kind] > room
    fit = f' textLength="{room:g}" lengthAdjust="spacingAndGlyphs"' if is_long else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{fit}>{_text(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(text: str) -> str:
    """Returns text that is safe in XML, where control characters are not allowed."""
    return escape(printable(text))


def _quoted(text: str) -> str:
    return '"' + escape(printable(text), {'"': "&quot;"}) + '"'
