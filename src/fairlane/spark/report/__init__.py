"""What an archive tells: tables as Parquet, plots as PNG, and one page of HTML with all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.model import check_priority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

Targets = dict[int | None, int]
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Made:
    """What was written, and the numbers at the head of the page.

    `paths`: "page", "summary", "tables" and each plot's name -> file or folder.
    """

    paths: Mapping[str, Path]
    summary: Mapping[str, Any]


def make(
    spark: SparkSession,
    archive_folder: str,
    out: str | Path,
    *,
    since: str | datetime | None = None,
    targets: str | Mapping[int | None, int] | None = None,
) -> Made:
    """Computes the report of an archive and writes it to the local folder `out`.

    `since`: a moment, or how far back as text ("24h"), by when a sub-request was settled; None =
    all there is. `targets`: how long a sub-request may take from its submission to its end, ms by
    priority (None = the others), or text as in "0:1s,5:30s,5m". Raises InvalidArgument when the
    archive is none or holds nothing of that time.
    """
    from fairlane.spark.report.aggregates import Models
    from fairlane.spark.report.html.page import write_page
    from fairlane.spark.report.plots.plots import draw_all

    goals = targets_of(targets) if isinstance(targets, str) else dict(targets or {})
    folder = Path(out)
    models = Models(spark, archive_folder, moment_of(since), goals)
    tables = models.write(folder / "tables")
    summary = models.summary(tables)
    plots = draw_all(tables, summary, folder)
    page = write_page(folder / PAGE, tables, summary, plots)
    told = folder / "summary.json"
    told.write_text(json.dumps(summary, indent=2) + "\n")
    paths = {"page": page, "summary": told, "tables": folder / "tables"}
    return Made(paths | {plot.name: plot.file for plot in plots}, summary)


def moment_of(since: str | datetime | None) -> datetime | None:
    """A moment from what a person writes: "24h" = so long ago, or "2026-11-20[T12:00]" in UTC."""
    if since is None:
        return None
    if isinstance(since, datetime):
        return since if since.tzinfo else since.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(since)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(milliseconds=settings.duration_ms(since))
    except InvalidArgument:
        raise InvalidArgument(
            f"{since!r} is no moment: write how long ago (1h, 7d) or a date (2026-01-31)"
        ) from None


def targets_of(text: str) -> Targets:
    """Targets in ms from text: "0:1s,5m" is {0: 1000, None: 300000}. Raises InvalidArgument."""
    found: Targets = {}
    for part in text.split(","):
        priority, colon, duration = part.strip().rpartition(":")
        key: int | None = None
        if colon:
            try:
                key = check_priority(int(priority))
            except ValueError:
                raise InvalidArgument(
                    f"{priority!r} is not valid: a priority from 0 to 99 is expected"
                ) from None
        if key in found:
            raise InvalidArgument(f"{text!r} names a target twice")
        found[key] = settings.duration_ms(duration)
    return found
