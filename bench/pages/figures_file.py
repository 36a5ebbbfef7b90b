"""Stores all figures in one file: for each workload a line about its run, then one line a row.

The workloads are sorted by name, and the rows stay in the order of their measurement. So the diff
of two runs pairs the same rows. An empty point, value or note is left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FILE = "figures.jsonl"
_ROW = ("peer", "label", "point", "values", "note")
_EMPTY: dict[str, Any] = {"point": "", "values": {}, "note": ""}


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Returns the run of each workload, with its rows."""
    file = out / FILE
    kept: dict[str, dict[str, Any]] = {}
    if not file.exists():
        return kept
    for line in file.read_text().rstrip("\n").split("\n"):
        entry = json.loads(line)
        name = entry.pop("workload")
        if "peer" in entry:
            kept[name]["rows"].append({**_EMPTY, **entry})
        else:
            kept[name] = {**entry, "rows": []}
    return kept


def write(out: Path, kept: dict[str, dict[str, Any]]) -> None:
    """Replaces the file; `kept` has the form that `read` returns."""
    lines = []
    for name, run in sorted(kept.items()):
        lines.append({"workload": name, **{key: run[key] for key in run if key != "rows"}})
        lines += [
            {"workload": name, **{key: row[key] for key in _ROW if row[key]}} for row in run["rows"]
        ]
    texts = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines]
    (out / FILE).write_text("".join(f"{text}\n" for text in texts))
