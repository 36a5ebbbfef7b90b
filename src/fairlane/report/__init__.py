"""Reports on an archive: tables as Parquet, plots as PNG, and one page of HTML with all of it.

Needs the extra `report`. `fairlane spark archive` writes the archive.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.options import check_option

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = "report.html"
MISSING = "a report needs the extra report: pip install '.[report]' in a clone of the repository"


class Made(NamedTuple):
    """Names the page that was written, and holds the numbers at its head.

    Beside it are `summary.json`, a PNG of each plot, and the tables in the folder `tables`.
    """

    page: Path
    summary: Mapping[str, Any]


def make(
    archive: str | Path,
    out: str | Path,
    *,
    since: str | datetime | None = None,
    targets: str | Mapping[int | None, int] | None = None,
) -> Made:
    """Computes the report of an archive and writes it to the folder `out`, whole or not at all.

    `since`: the earliest settlement that counts: a moment, or an age as text ("24h"); None =
    all. `targets`: the longest time from submission to end, in ms by priority (None = the
    others). Targets may also be text, as in "0:1s,5:30s,5m". Raises InvalidArgument if the
    folder is no archive, cannot be read, or holds nothing of that time.
    """
    moment = moment_of(since)
    goals = targets_of(targets) if isinstance(targets, str) else dict(targets or {})
    if not (find_spec("duckdb") and find_spec("matplotlib")):
        raise InvalidArgument(MISSING)
    from fairlane.report.page import page_of
    from fairlane.report.plots import PLOTS, draw_all
    from fairlane.report.tables import compute

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"--out {folder} is a file: name a folder, which may be a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder.parent) as made_in:
        made = Path(made_in)
        figures = compute(Path(archive), made / "tables", moment, goals)
        (made / PAGE).write_text(page_of(figures, draw_all(figures, made)), encoding="utf-8")
        (made / "summary.json").write_text(json.dumps(figures.summary, indent=2) + "\n")
        for name in PLOTS:  # of an earlier report, which had data for more plots
            (folder / f"{name}.png").unlink(missing_ok=True)
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for file in [*made.glob("*/*.parquet"), *made.glob("*.*")]:
            shutil.move(file, folder / file.relative_to(made))
    return Made(folder / PAGE, figures.summary)


def moment_of(since: str | datetime | None) -> datetime | None:
    """Returns the moment of a user's text: "24h" = so long ago, or "2026-11-20[T12:00]" in UTC.

    Raises InvalidArgument.
    """
    try:
        moment = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError:
        try:
            return datetime.now(UTC) - timedelta(milliseconds=settings.duration_ms(str(since)))
        except (InvalidArgument, OverflowError):
            raise InvalidArgument(
                f"{since!r} is no moment: write how long ago (1h, 7d) or a date (2026-01-31)"
            ) from None
    return moment.replace(tzinfo=UTC) if moment and not moment.tzinfo else moment


def targets_of(text: str) -> dict[int | None, int]:
    """Returns targets in ms: "0:1s,5m" is {0: 1000, None: 300000}. Raises InvalidArgument."""
    targets: dict[int | None, int] = {}
    for part in text.split(","):
        priority, colon, duration = part.strip().rpartition(":")
        try:
            key = check_option("priority", int(priority)) if colon else None
        except ValueError:
            raise InvalidArgument(
                f"{priority!r} is not valid: a priority from 0 to 99 is expected"
            ) from None
        if key in targets:
            raise InvalidArgument(f"{text!r} names a target twice")
        targets[key] = settings.duration_ms(duration)
    return targets
