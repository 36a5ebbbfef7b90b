"""Tests a report's numbers against those that plain Python finds in the same rows."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("matplotlib")

from fairlane import report
from fairlane.archive.manifest import NAME, open_archive
from fairlane.errors import InvalidArgument
from fairlane.report.axes import duration, number, share
from fairlane.report.tables import compute
from tests.report.history import T0, Asked, History, example

pytestmark = pytest.mark.slow  # it draws
TARGETS = {0: 200, None: 20_000}  # ms


def table_of(out: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(out / "tables" / f"{name}.parquet").to_pylist()
    return found


class World:
    """An example's report, and the rows it was made of."""

    def __init__(self, folder: Path) -> None:
        self.history = example(minutes=1)
        self.history.write(folder / "archive")
        self.archive = str(folder / "archive")
        self.out = folder / "report"
        self.made = report.make(self.archive, self.out, targets="0:200ms,20s")
        self.width_us = int(self.made.summary["window_s"] * 1e6)
        first: int = min(row["started"] for row in self.results)
        self.start_us = first // self.width_us * self.width_us

    @property
    def results(self) -> list[dict[str, Any]]:
        return self.history.results

    def table(self, name: str) -> list[dict[str, Any]]:
        return table_of(self.out, name)

    def window(self, micros: int) -> int:
        return (micros - self.start_us) // self.width_us


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("report"))


# ------------------------------------------------------------------ counts


def test_windows_count_settled_sub_requests(world: World):
    counts: Counter[Any] = Counter()
    busy: dict[Any, float] = defaultdict(float)
    for row in world.results:
        at = world.window(row["settled"]), row["priority"]
        counts[at] += 1
        busy[at] += row["ran_ms"]
    rows = {(row["window"], row["priority"]): row for row in world.table("windows")}
    assert {at: row["finished"] for at, row in rows.items()} == counts
    assert {at: row["busy_ms"] for at, row in rows.items()} == pytest.approx(busy)


def test_priorities_count_settled_sub_requests(world: World):
    table = {row["priority"]: row for row in world.table("priorities")}
    assert set(table) == {0, 5, 20, 70, 90, None}
    for priority, row in table.items():
        rows = [one for one in world.results if priority in {None, one["priority"]}]
        done = [one for one in rows if one["status"] == "done"]
        assert row["finished"] == len(rows)
        assert row["dead"] == len(rows) - len(done)
        # What a deadline ended before its first attempt was not tried minus once.
        assert row["retries"] == sum(max(one["attempt"] - 1, 0) for one in rows)
        assert row["waited_max_ms"] == max(one["waited_ms"] for one in rows)
        assert row["within_1s"] == sum(one["total_ms"] <= 1000 for one in done)
        assert row["met"] == sum(
            one["total_ms"] <= TARGETS.get(one["priority"], TARGETS[None]) for one in done
        )


def percentile(values: list[float], rank: float) -> float:
    """Returns the smallest value that is at least as large as this share of all."""
    return sorted(values)[math.ceil(len(values) * rank) - 1]


def test_percentiles_are_exact(world: World):
    for row in world.table("priorities"):
        rows = [one for one in world.results if row["priority"] in {None, one["priority"]}]
        for name in ("waited", "ran", "total"):
            # What never ran is not what ran for 0 ms.
            values = [one[f"{name}_ms"] for one in rows if name != "ran" or one["ran_ms"]]
            if not values:
                assert (row["priority"], name, row["ran_p50_ms"]) == (70, "ran", None)
                continue
            for rank in (50, 95, 99):
                found = row[f"{name}_p{rank}_ms"]
                assert found == pytest.approx(percentile(values, rank / 100), abs=0.0006)


def test_longest_waits_name_the_request_that_waited(world: World):
    for row in world.table("longest_waits"):
        rows = [one for one in world.results if one["priority"] == row["priority"]]
        longest = max(rows, key=lambda one: (one["waited_ms"], one["request"], one["index"]))
        assert (row["request"], row["index"]) == (longest["request"], longest["index"])


def test_dead_are_counted_by_reason(world: World):
    found: Counter[Any] = Counter()
    for row in world.table("dead"):
        found[row["priority"], row["reason"]] += row["count"]
    assert found == Counter((row["priority"], row["reason"]) for row in world.history.dead)


def test_workers_are_busy_as_long_as_their_handlers_ran(world: World):
    for row in world.table("workers"):
        rows = [one for one in world.results if one["worker"] == row["worker"]]
        assert row["finished"] == len(rows)
        assert row["busy_ms"] == pytest.approx(sum(one["ran_ms"] for one in rows))


# ------------------------------------------------------------------ shares


def spread(world: World, begin: int, end: int) -> dict[int, int]:
    """Returns how much of [begin, end) lies in each window, us."""
    found = {}
    for window in range(max(0, world.window(begin)), world.window(max(begin, end - 1)) + 1):
        low = world.start_us + window * world.width_us
        found[window] = min(end, low + world.width_us) - max(begin, low)
    return found


def busy_by_request(world: World) -> dict[tuple[str, int], int]:
    busy: dict[tuple[str, int], int] = defaultdict(int)
    for row in world.results:
        begin = row["started"]
        for window, overlap in spread(world, begin, begin + round(row["ran_ms"] * 1000)).items():
            busy[row["request"], window] += overlap
    return busy


def test_tokens_are_used_while_handlers_run(world: World):
    used: dict[Any, float] = defaultdict(float)
    allowed: dict[Any, float] = defaultdict(float)
    busy = busy_by_request(world)
    for one in world.history.requests:
        for window, overlap in spread(world, one.at_ms * 1000, one.ended_ms * 1000).items():
            allowed[window, one.priority] += overlap * one.limit / world.width_us
            used[window, one.priority] += busy.get((one.id, window), 0) / world.width_us
    found = world.table("tokens")
    assert {(row["window"], row["priority"]) for row in found} == set(allowed)
    for row in found:
        at = row["window"], row["priority"]
        assert row["used"] == pytest.approx(used[at], abs=1e-6)
        assert row["allowed"] == pytest.approx(allowed[at])
    use = sum(used.values()) / sum(allowed.values())
    assert world.made.summary["token_use"] == pytest.approx(use, rel=1e-6)


def test_fairness_is_jains_index_of_the_requests_of_the_window(world: World):
    busy = busy_by_request(world)
    shares: dict[Any, list[float]] = defaultdict(list)
    for one in world.history.requests:
        for window, overlap in spread(world, one.at_ms * 1000, one.ended_ms * 1000).items():
            if overlap == world.width_us:
                shares[window, one.priority].append(busy.get((one.id, window), 0) / one.limit)
    expected = {
        at: sum(each) ** 2 / (len(each) * sum(x * x for x in each))
        for at, each in shares.items()
        if len(each) > 1 and any(each)
    }
    found = {(row["window"], row["priority"]): row["jain"] for row in world.table("fairness")}
    assert len(expected) > 5
    assert found == pytest.approx(expected)


# ------------------------------------------------------------------ inversions


def inverted_takes(history: History, grace_us: int = 250_000) -> Counter[int]:
    """Counts inverted takes by priority, directly by the definition, and slowly."""
    limits = {one.id: one.limit for one in history.requests}
    takes: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in history.results:
        if row["worker"] == "-":
            row["taken"] = row["settled"]
            continue
        before = round((row["total_ms"] - row["waited_ms"] - row["ran_ms"]) * 1000)
        row["taken"] = row["started"] - before
        takes[row["request"], row["priority"], row["worker"], row["taken"]].append(row)
    found: Counter[int] = Counter()
    for _, priority, _, taken in takes:
        others = [one for one in history.requests if one.priority < priority]
        found[priority] += any(
            was_open(history, takes, one.id, limits[one.id], taken, grace_us) for one in others
        )
    return found


def was_open(
    history: History, takes: Any, request: str, limit: int, taken: int, grace_us: int
) -> bool:
    rows = [row for row in history.results if row["request"] == request and row["attempt"] <= 1]
    held = [(key[3], each[0]["settled"]) for key, each in takes.items() if key[0] == request]
    moments = {taken - grace_us, taken}
    moments |= {m for pair in held for m in pair if taken - grace_us < m <= taken}
    return all(
        any(row["taken"] - row["waited_ms"] * 1000 <= m < row["taken"] for row in rows)
        and sum(low <= m < high for low, high in held) < limit
        for m in moments
    )


class Careless(History):
    """A queue that takes the oldest request, whatever its priority."""

    def choose(self, ready: list[Asked]) -> Asked:
        return ready[0]


def small(kind: type[History]) -> History:
    asked = [
        Asked("low", 50, 2, 40, T0, 30),
        Asked("high", 1, 2, 20, T0 + 200, 30),
        Asked("late", 1, 1, 4, T0 + 700, 30),
    ]
    history = kind(asked, workers=2)
    if kind is Careless:  # it waited until its deadline, and was never taken
        history.expire(Asked("gone", 0, 1, 2, T0, 0), T0 + 440)
    return history


@pytest.mark.parametrize("kind", [History, Careless])
def test_takes_are_inverted_when_an_urgent_request_was_left(tmp_path: Path, kind: type[History]):
    history = small(kind)
    history.write(tmp_path)
    report.make(tmp_path, tmp_path / "out")
    rows = {row["priority"]: row for row in table_of(tmp_path / "out", "inversions")}
    expected = inverted_takes(history)
    assert {one: row["inverted"] for one, row in rows.items()} == {1: 0, 50: 0} | expected
    assert (expected[50] > 0) == (kind is Careless)
    shown = table_of(tmp_path / "out", "inverted")
    assert all(row["waiting_ms"] >= 250 for row in shown)
    waiting = {row["waiting_request"] for row in shown}
    assert waiting == ({"high", "gone"} if kind is Careless else set())


# ------------------------------------------------------------------ the page


def test_the_page_shows_the_numbers_and_needs_no_other_file(world: World):
    text = world.made.page.read_text()
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text) == []
    assert "@import" not in text
    assert text.count("<svg") == len(list(world.out.glob("*.png"))) == 8
    assert "prefers-color-scheme:dark" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert f"{len(world.results):,} sub-requests of {len(world.history.requests)} requests" in text
    assert "ValueError: no such page" in text
    assert f"{len(world.history.dead)}</b><span>dead" in text


def test_the_summary_is_json(world: World):
    summary = json.loads((world.out / "summary.json").read_text())
    assert summary == world.made.summary
    assert summary["finished"] == summary["results"] == len(world.results)
    assert summary["attainment"] == pytest.approx(
        sum(
            one["status"] == "done" and one["total_ms"] <= TARGETS.get(one["priority"], 20_000)
            for one in world.results
        )
        / len(world.results)
    )


def test_since_leaves_out_earlier_rows(world: World, tmp_path: Path):
    when = T0 + 30_000
    since = datetime.fromtimestamp(when / 1000, UTC).isoformat()
    made = report.make(world.archive, tmp_path / "out", since=since)
    later = [row for row in world.results if row["settled"] >= when * 1000]
    assert made.summary["finished"] == len(later) < len(world.results)
    with pytest.raises(InvalidArgument, match="nothing of that time"):
        report.make(world.archive, tmp_path / "none", since="2099-01-01")


def test_endings_alone_make_a_page_as_well(world: World, tmp_path: Path):
    (tmp_path / "archive").mkdir()
    copy = json.loads(Path(world.archive, NAME).read_text())
    copy["files"] = [file for file in copy["files"] if file["table"] == "requests"]
    (tmp_path / "archive" / NAME).write_text(json.dumps(copy))
    (tmp_path / "archive" / "requests").symlink_to(f"{world.archive}/requests")
    made = report.make(tmp_path / "archive", tmp_path / "out")
    assert made.summary["requests"] == len(world.history.requests)
    assert "without results" in made.page.read_text()


# ------------------------------------------------------------------ bad input


def refused(archive: Path, out: Path) -> str:
    """Returns why there is no report; nothing is left of it."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(InvalidArgument) as refusal:
        report.make(archive, out)
    assert sorted(out.parent.rglob("*")) == before
    return str(refusal.value)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Returns an archive of a few requests."""
    small(History).write(tmp_path / "archive")
    return tmp_path / "archive"


def test_a_folder_that_is_no_archive_is_refused(tmp_path: Path):
    folder = tmp_path / "photos"
    assert "is no archive of a queue" in refused(folder, tmp_path / "out")
    with open_archive(folder, "reader"):
        pass  # as it is when nothing has ended
    assert "holds nothing yet" in refused(folder, tmp_path / "out")


def test_a_torn_file_leaves_nothing(archive: Path, tmp_path: Path):
    (file,) = (archive / "results").rglob("*.parquet")
    file.write_bytes(b"torn")
    assert f"{file} is torn or no Parquet file" in refused(archive, tmp_path / "out")


def test_an_output_path_that_is_a_file_is_refused(archive: Path, tmp_path: Path):
    (tmp_path / "out").write_text("mine")
    assert "is a file" in refused(archive, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_file_called_tables_leaves_an_earlier_report_as_it_was(archive: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("dead.png", "targets.png", "tables"):
        (out / name).write_text("mine")
    assert f"{out / 'tables'} is a file" in refused(archive, out)


def test_the_page_is_replaced_last(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder may be on a file system of its own, and its parent need not be writable."""
    out, moved = tmp_path / "out", []
    report.make(archive, out, targets="1s")
    replace = type(out).replace

    def note(file: Path, target: Path) -> Path:
        assert file.is_relative_to(out)
        assert (out / "targets.png").exists()
        moved.append(target.relative_to(out).as_posix())
        return replace(file, target)

    monkeypatch.setattr(type(out), "replace", note)
    report.make(archive, out)
    assert moved[-1] == report.PAGE
    assert not (out / "targets.png").exists()


def test_a_second_report_replaces_the_first(archive: Path, tmp_path: Path):
    out = tmp_path / "out"
    report.make(archive, out, targets="1s")
    (out / "notes.txt").write_text("mine")
    assert (out / "targets.png").exists()
    report.make(archive, out)
    assert not (out / "targets.png").exists()
    assert (out / "notes.txt").read_text() == "mine"
    assert [*out.glob(".*")] == []


def test_a_missing_extra_is_named(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None if name == "duckdb" else object())
    assert "pip install '.[report]'" in refused(archive, tmp_path / "out")


# ------------------------------------------------------------------ short, with many priorities


class Short:
    """The report of two seconds with thirty priorities, and the tables that it was drawn from."""

    def __init__(self, folder: Path) -> None:
        asked = [Asked(f"r{n}", 3 * n, 2, 20, T0 + 70 * n, 12, int(n == 7)) for n in range(30)]
        self.history = History(asked, workers=8)
        self.history.write(folder / "archive")
        targets = {0: 0.2, None: 20}
        self.made = report.make(folder / "archive", folder / "report", targets=targets)
        self.figures = compute(folder / "archive", folder / "again", None, TARGETS)

    def table(self, name: str) -> list[dict[str, Any]]:
        return table_of(self.made.page.parent, name)

    def of_band(self, first: int | None) -> list[dict[str, Any]]:
        rows = self.history.results
        return (
            rows if first is None else [row for row in rows if row["priority"] // 20 == first // 20]
        )


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Short:
    return Short(tmp_path_factory.mktemp("short"))


def test_a_short_run_has_windows_below_a_second_and_fairness_none(short: Short):
    assert short.made.summary["window_s"] == 0.1
    counted = Counter(row["window"] for row in short.table("windows"))
    assert len(counted) >= 15
    assert sum(row["finished"] for row in short.table("windows")) == 600
    page = short.made.page.read_text()
    assert "windows of 100 ms" in page
    assert re.search(r"2026-11-20 \d\d:\d\d:\d\d\.\d00 to \d\d:\d\d:\d\d\.\d00 UTC", page)
    assert [row["window"] for row in short.table("fairness") if row["window"] > 2] == []


def test_bands_have_the_numbers_of_their_priorities(short: Short):
    tables = short.figures.tables
    pairs = zip(tables["latency"], tables["targets"], strict=True)
    table = {row["band"]: row | more for row, more in pairs}
    assert set(table) == {0, 20, 40, 60, 80, None}
    for first, row in table.items():
        rows = short.of_band(first)
        assert row["settled"] == len(rows)
        assert row["dead"] == sum(one["status"] == "dead" for one in rows)
        assert row["target_ms"] == (None if first in {0, None} else 20_000)
        p95 = percentile([one["total_ms"] for one in rows], 0.95)
        assert row["total p95_ms"] == pytest.approx(p95, abs=0.0006)


def test_many_priorities_are_a_few_rows_and_colours(short: Short):
    bands = ["0 to 19", "20 to 39", "40 to 59", "60 to 79", "80 to 99"]
    page = short.made.page.read_text()
    shown, _, folded = page.partition("<details>")
    assert re.findall(r"</i>(\d+ to \d+)</td>", shown) == bands
    assert "Each of the 30 priorities" in folded
    assert len(re.findall(r"</i>\d+</td>", folded.partition("</details>")[0])) == 30
    assert set(re.findall(r">priority (.*?)</text>", page)) == set(bands)


# ------------------------------------------------------------------ targets and numbers


def test_targets_are_read():
    assert report.targets_of("0:1s, 5:30s,5m") == {0: 1000, 5: 30_000, None: 300_000}
    assert report.targets_of("250ms") == {None: 250}
    seconds: dict[int | None, Any] = {0: "1s", 5: 0.25, None: timedelta(minutes=5)}
    assert report.targets_of(seconds) == {0: 1000, 5: 250, None: 300_000}
    assert report.targets_of(None) == {}


@pytest.mark.parametrize(
    "given",
    [
        *("x:1s", "100:1s", "0:soon", "1s,2s", "0:1s,0:2s", "", "0s"),
        *({200: 1}, {"0": 5}, {True: 5}, {0: -5}, {0: 0}, {0: "soon"}, {0: None}, {0: 1e200}),
    ],
)
def test_invalid_targets_are_refused(given: Any):
    with pytest.raises(InvalidArgument):
        report.targets_of(given)


def test_moments_are_in_utc():
    at = datetime(900, 1, 1, tzinfo=UTC)
    assert report.moment_of("0900-01-01") == report.moment_of(at) == at
    there = report.moment_of("2026-01-31T23:00-05:00")
    assert there is not None
    assert there.isoformat() == "2026-02-01T04:00:00+00:00"


@pytest.mark.parametrize(
    "text",
    [
        *("yesterday", "1 fortnight", "2026-13-01"),
        *("0001-01-01T00:00+02:00", "9999-12-31T23:59-05:00", "9000000d"),
    ],
)
def test_invalid_moments_are_refused(text: str):
    with pytest.raises(InvalidArgument, match="is no moment"):
        report.moment_of(text)


def test_numbers_are_written_in_the_usual_form():
    assert [duration(ms) for ms in (0.4, 12, 3400, 312_000, 11_160_000, None)] == [
        *("0.4 ms", "12 ms", "3.4 s", "5.2 min", "3.1 h", "–"),  # noqa: RUF001
    ]
    assert [share(part) for part in (0, 0.0001, 0.5, 0.9999, 1)] == [
        *("0.0 %", "< 0.1 %", "50.0 %", "> 99.9 %", "100 %"),
    ]
    assert [number(value) for value in (0.123, 1.26, 99.94, 1234.5)] == [
        *("0.12", "1.3", "99.9", "1,234"),
    ]
    assert math.isclose(float(number(2.0)), 2)


def test_the_rate_counts_busy_time_only(tmp_path: Path):
    """A handler that runs for several windows is busy in all of them; an empty queue is idle."""
    history = History([Asked("first", 0, 1, 1, T0, 700), Asked("later", 0, 1, 1, T0 + 9000, 5)], 1)
    history.write(tmp_path)
    summary = report.make(tmp_path, tmp_path / "out").summary
    width_us = summary["window_s"] * 1e6
    busy = {
        at
        for row in history.results
        for at in range(
            int(row["started"] // width_us),
            int((row["started"] + row["ran_ms"] * 1000 - 1) // width_us) + 1,
        )
    } | {int(row["settled"] // width_us) for row in history.results}
    assert len(busy) < summary["windows"] / 2
    assert summary["per_s"] == pytest.approx(2 / (len(busy) * summary["window_s"]))
    assert summary["peak_per_s"] == pytest.approx(1 / summary["window_s"])


def test_a_plot_keeps_its_size_on_a_phone(world: World):
    """Otherwise its text would be half as large as that of the page."""
    page = (world.out / report.PAGE).read_text()
    assert re.search(r"figure\{[^}]*overflow-x:auto", page)
    assert re.search(r"figure svg\{[^}]*min-width:660px", page)
    assert page.count("<figure tabindex='0'>") == page.count("<figure")
