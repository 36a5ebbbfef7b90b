"""`fairlane report`: tables, plots and a page on throughput, waiting and fairness."""

from __future__ import annotations

import click

from fairlane.cli.options import FILE, json_option
from fairlane.cli.output import note, write_json, write_line


@click.command("report", short_help="Make tables, plots and a page of an archive.")
@click.argument("archive", metavar="FOLDER", type=FILE)
@click.option("--out", required=True, metavar="PATH", type=FILE, help="The folder of the report.")
@click.option(
    "--since", metavar="TIME", help="Only what was settled since then, as 1h, 7d or 2026-01-31."
)
@click.option(
    "--targets", metavar="P:TIME,...",
    help="What a sub-request may take in all, by priority and for the others: 0:1s,5:30s,5m",
)  # fmt: skip
@json_option
def command(archive: str, out: str, since: str | None, targets: str | None, as_json: bool) -> int:
    """Read what `fairlane archive` wrote to FOLDER; print the path of the report's page.

    It needs no Redis.
    """
    from fairlane.report import make

    made = make(archive, out, since=since, targets=targets)
    if as_json:
        write_json({"page": str(made.page), **made.summary})
    else:
        write_line(str(made.page))
        note(f"tables and plots are in {out}, too")
    return 0
