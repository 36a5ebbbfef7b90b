"""Draws the end of the demo's output as a picture: `demo.py | picture.py FILE.svg`.

It is dark in a light page, too, as a terminal is, and needs no font of another host.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
COLOURS = {"urgent": "bold red", "middle": "yellow", "bulk": "blue"}
# As rich's own form of a terminal, without its font and its window.
FORM = """<svg class="rich-terminal" viewBox="0 0 {terminal_width} {terminal_height}"
 xmlns="http://www.w3.org/2000/svg" role="img" aria-label="The table and the timeline of the demo">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="8" fill="#16181d"/>
<g transform="translate(16, 8)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def picture(text: str) -> str:
    """Returns the SVG of the table and the timeline in the demo's output."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("request "))
    end = next(n for n, line in enumerate(lines) if n > start and line.lstrip().startswith("0 s"))
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text("$ make demo", "bold"))
        for line in lines[start : end + 1]:
            console.print(Text(line, COLOURS.get(line.partition("-")[0], "")), soft_wrap=True)
        console.print()  # the form has no room of its own below the last line
        return console.export_svg(code_format=FORM, unique_id="demo")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(sys.stdin.read()))
