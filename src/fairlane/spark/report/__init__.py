"""Reports on an archive: tables as Parquet, plots as PNG, and one page of HTML with all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.options import check_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

Targets = dict[int | None, int]
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Made:
    """Names the files that were written, and holds the numbers at the head of the page.

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

    `since`: the earliest settlement that counts: a moment, or an age as text ("24h"); None =
    all. `targets`: the longest time from submission to end, in ms by priority (None = the
    others). Targets may also be text, as in "0:1s,5:30s,5m". Raises InvalidArgument if the
    folder is no archive, or holds nothing of that time.
    """
    from fairlane.spark.report.page import write_page
    from fairlane.spark.report.plots import draw_all
    from fairlane.spark.report.tables import Models

    goals = targets_of(targets) if isinstance(targets, str) else dict(targets or {})
    folder = Path(out)
    models = Models(spark, archive_folder, moment_of(since), goals)
    tables = models.write(folder / "tables")
    summary = models.summary(tables)
    plots = draw_all(tables, summary, folder)
    page = write_page(folder / PAGE, tables, summary, plots)
    summary_file = folder / "summary.json"
    summary_file.write_text(json.dumps(summary, indent=2) + "\n")
    paths = {"page": page, "summary": summary_file, "tables": folder / "tables"}
    return Made(paths | {plot.name: plot.file for plot in plots}, summary)


def moment_of(since: str | datetime | None) -> datetime | None:
    """Returns the moment of a user's text: "24h" = so long ago, or "2026-11-20[T12:00]" in UTC.

    Raises InvalidArgument.
    """
    if since is None:
        return None
    if isinstance(since, datetime):
        return since if since.tzinfo else since.replace(tzinfo=UTC)
    try:
        moment = datetime.fromisoformat(since)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(milliseconds=settings.duration_ms(since))
    except InvalidArgument:
        raise InvalidArgument(
            f"{since!r} is no moment: write how long ago (1h, 7d) or a date (2026-01-31)"
        ) from None


def targets_of(text: str) -> Targets:
    """Returns targets in ms: "0:1s,5m" is {0: 1000, None: 300000}. Raises InvalidArgument."""
    targets: Targets = {}
    for part in text.split(","):
        priority, colon, duration = part.strip().rpartition(":")
        key: int | None = None
        if colon:
            try:
                key = check_option("priority", int(priority))
            except ValueError:
                raise InvalidArgument(
                    f"{priority!r} is not valid: a priority from 0 to 99 is expected"
                ) from None
        if key in targets:
            raise InvalidArgument(f"{text!r} names a target twice")
        targets[key] = settings.duration_ms(duration)
    return targets
