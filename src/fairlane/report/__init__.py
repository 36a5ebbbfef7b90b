"""Reports on an archive: tables as Parquet, plots as PNG, and one page of HTML with all of it.

Needs the extra `report`. `fairlane archive` writes the archive.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.clock import LAST_MS, duration_ms
from fairlane.errors import InvalidArgument
from fairlane.options import check_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Duration = str | float | timedelta

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
    targets: str | Mapping[int | None, Duration] | None = None,
) -> Made:
    """Computes the report of an archive and writes it to the folder `out`.

    `since`: the earliest settlement that counts: a moment, or an age as text ("24h"); None =
    all. `targets`: the longest time from submission to end, by priority (None = the others), in
    seconds or as text. Targets may also be one text, as in "0:1s,5:30s,5m". Raises InvalidArgument
    if the folder is no archive, cannot be read, or holds nothing of that time. The folder `out` is
    then as before.
    """
    moment = moment_of(since)
    goals = targets_of(targets)
    if not (find_spec("duckdb") and find_spec("matplotlib")):
        raise InvalidArgument(MISSING)
    from fairlane.report.page import page_of
    from fairlane.report.plots import PLOTS, draw_all
    from fairlane.report.tables import compute

    folder = Path(out)
    for place in (folder, folder / "tables"):
        if place.exists() and not place.is_dir():
            raise InvalidArgument(
                f"--out {folder} is not valid: {place} is a file; name a folder, which may be new"
            )
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as made_in:
            made = Path(made_in)
            figures = compute(Path(archive), made / "tables", moment, goals)
            page = page_of(figures, draw_all(figures, made))
            (made / PAGE).write_text(page, encoding="utf-8")
            (made / "summary.json").write_text(json.dumps(figures.summary, indent=2) + "\n")
            _replace(made, folder, PLOTS)
    finally:
        if is_new:
            with suppress(OSError):  # it has the report
                folder.rmdir()
    return Made(folder / PAGE, figures.summary)


def _replace(made: Path, folder: Path, plots: Iterable[str]) -> None:
    """Moves a report to its folder, the page last; then removes plots of an earlier report."""
    (folder / "tables").mkdir(exist_ok=True)
    drawn = {file.stem for file in made.glob("*.png")}
    files = [*made.glob("*/*.parquet"), *made.glob("*.png"), made / "summary.json", made / PAGE]
    for file in files:
        file.replace(folder / file.relative_to(made))
    for name in plots:
        if name not in drawn:
            (folder / f"{name}.png").unlink(missing_ok=True)


def moment_of(since: str | datetime | None) -> datetime | None:
    """Returns a user's moment in UTC: "24h" = so long ago, or "2026-11-20[T12:00]" in UTC.

    Raises InvalidArgument.
    """
    if since is None:
        return None
    try:
        try:
            moment = datetime.fromisoformat(since) if isinstance(since, str) else since
        except ValueError:
            moment = datetime.now(UTC) - timedelta(milliseconds=settings.duration_ms(str(since)))
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (InvalidArgument, OverflowError):
        raise InvalidArgument(
            f"{str(since)!r} is no moment: write how long ago (1h, 7d) or a date (2026-01-31)"
        ) from None


def targets_of(given: str | Mapping[int | None, Duration] | None) -> dict[int | None, int]:
    """Returns targets in ms: "0:1s,5m" is {0: 1000, None: 300000}. Raises InvalidArgument."""
    targets: dict[int | None, int] = {}
    pairs = _pairs(given) if isinstance(given, str) else list((given or {}).items())
    for priority, duration in pairs:
        key = None if priority is None else check_option("priority", priority)
        if key in targets:
            raise InvalidArgument(f"{given!r} names a target twice")
        targets[key] = duration_ms("target", duration)
        if not 0 < targets[key] <= LAST_MS:
            raise InvalidArgument(f"target {duration!r} is not valid: a time above 0 is expected")
    return targets


def _pairs(text: str) -> list[tuple[int | None, Duration]]:
    pairs: list[tuple[int | None, Duration]] = []
    for part in text.split(","):
        priority, colon, duration = part.strip().rpartition(":")
        try:
            pairs.append((int(priority) if colon else None, duration))
        except ValueError:
            raise InvalidArgument(
                f"{priority!r} is not valid: a priority from 0 to 99 is expected"
            ) from None
    return pairs
