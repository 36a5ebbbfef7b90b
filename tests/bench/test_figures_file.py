"""Tests the file that holds the figures of a run, and the pages that are made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.harness.bench import Bench, Row
from bench.harness.parts import ALONE, ASKED, BESIDE_PEERS
from bench.pages import figures_file, plots, report

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"


def run_of(*rates: float) -> dict[str, Any]:
    rows = [
        {"peer": "rq", "label": "RQ", "point": "in bulk", "values": {"rate": [rate]}, "note": ""}
        for rate in rates
    ]
    return {"run": "2026-01-01T00:00:00+00:00", "versions": {"rq": "2.12.0"}, "rows": rows}


def test_a_run_is_read_as_it_was_written(tmp_path: Path):
    kept = {"drain": run_of(10.0, 20.5), "submit": run_of(30.0)}
    kept["submit"]["rows"][0] |= {"point": "", "values": {}, "note": "needs node µs"}
    figures_file.write(tmp_path, kept)
    assert figures_file.read(tmp_path) == kept


def test_a_row_is_one_line_without_its_empty_fields(tmp_path: Path):
    figures_file.write(tmp_path, {"drain": run_of(10.0)})
    assert (tmp_path / "figures.jsonl").read_text().splitlines() == [
        '{"workload":"drain","run":"2026-01-01T00:00:00+00:00","versions":{"rq":"2.12.0"}}',
        '{"workload":"drain","peer":"rq","label":"RQ","point":"in bulk","values":{"rate":[10.0]}}',
    ]


def test_the_order_of_the_workloads_changes_nothing(tmp_path: Path):
    file = tmp_path / "figures.jsonl"
    figures_file.write(tmp_path, {"drain": run_of(10.0), "submit": run_of(30.0)})
    before = file.read_text()
    figures_file.write(tmp_path, {"submit": run_of(30.0), "drain": run_of(10.0)})
    assert file.read_text() == before


def test_another_run_of_one_workload_leaves_the_lines_of_the_others(tmp_path: Path):
    figures_file.write(tmp_path, {"drain": run_of(10.0), "submit": run_of(30.0)})
    rows = [Row("rq", "RQ", "in bulk", "forks not", {"rate": [1 / 3, 2e6]})]
    report.keep(tmp_path, "submit", rows, Bench([], 5, 1.0), 7.4)
    kept = figures_file.read(tmp_path)
    assert kept["drain"] == run_of(10.0)
    assert kept["submit"]["seconds"] == 7
    assert kept["submit"]["settings"] == {"RQ": "forks not"}
    assert [row["values"] for row in kept["submit"]["rows"]] == [{"rate": [0.33333, 2e6]}]


def test_without_a_file_nothing_is_kept(tmp_path: Path):
    assert figures_file.read(tmp_path) == {}


def test_the_published_pages_are_made_from_the_published_figures():
    pages = report.pages(PUBLISHED, (*BESIDE_PEERS, *ASKED), ALONE)
    assert len(pages) > 10
    assert {name: (PUBLISHED / name).read_text() for name in pages} == pages


def test_the_published_figures_stand_as_the_writer_writes_them(tmp_path: Path):
    figures_file.write(tmp_path, figures_file.read(PUBLISHED))
    written = (tmp_path / "figures.jsonl").read_text()
    assert written == (PUBLISHED / "figures.jsonl").read_text()


@pytest.mark.rest
def test_a_plot_is_one_line_in_its_file(tmp_path: Path):
    pytest.importorskip("matplotlib")
    kept = report.read(PUBLISHED, ["fairness"])["fairness"]
    plots.draw(tmp_path, "fairness", kept)
    text = (tmp_path / "fairness.svg").read_text()
    assert text.startswith("<?xml")
    assert text.count("\n") == 1
