"""Tests the definitions of metrics: unique, named as Prometheus expects, and on their page."""

from __future__ import annotations

import re

from fairlane.metrics import ALL, BANDS, DEMAND, WANTED, WORKER, band_of, text_of
from tests.guide.blocks import ROOT
from tests.support.promtool import promtool

PAGE = ROOT / "docs" / "how-to" / "watch" / "metrics.md"
LABELS = {"band", "state", "node", "task"}  # each has few values, or is bounded


def test_names_are_unique_and_counters_alone_end_with_total():
    assert len({metric.name for metric in ALL}) == len(ALL)
    for metric in ALL:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        assert set(metric.labels) <= LABELS, metric.name


def test_there_are_ten_bands_of_ten_priorities():
    assert [BANDS.index(band_of(priority)) for priority in range(100)] == [
        band for band in range(10) for _ in range(10)
    ]
    assert (BANDS[0], BANDS[-1]) == ("0-9", "90-99")


def test_the_text_of_a_worker_is_valid():
    text = text_of("shop", [(metric, 3.5) for metric in (*WORKER.values(), DEMAND, WANTED)])
    promtool("check", "metrics", given=text)


def test_the_page_lists_every_metric_with_its_type_and_labels():
    rows = re.findall(r"^\| `(fairlane_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    listed = {name: (kind, labels.strip("` ")) for name, kind, labels in rows}
    assert listed == {metric.name: (metric.kind, ", ".join(metric.labels)) for metric in ALL}
    assert len(rows) == len(listed)
