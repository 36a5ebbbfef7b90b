"""Tests `fairlane top` in a terminal of 80 by 24."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli import top
from fairlane.errors import RedisUnreachable
from fairlane.live import Poller, Rates, frame_of
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.snapshots import measured, request, snapshot_of, worker

if TYPE_CHECKING:
    from fairlane.cli.top import Top
    from fairlane.operations.observe import Snapshot
    from tests.cli.program import Program

pytest.importorskip("textual", reason="needs the extra top")
ESCAPE = "\x1b]0;owned\x07"


class Source:
    """A queue with three requests and two workers, one of them late."""

    def __init__(self) -> None:
        self.away, self.looks = "", 0

    async def read(self) -> Snapshot:
        if self.away:
            raise RedisUnreachable(self.away)
        self.looks += 1
        return snapshot_of(
            request("alpha", priority=3, held=2, tenant="acme"),
            request("beta", priority=9, waiting=500, limit=50),
            request("gamma", priority=5, state="paused"),
            workers=(worker("h:1"), worker("h:2", is_alive=False, beat_age_ms=90_000)),
            after_s=self.looks,
            stats={5: measured(50 * self.looks)},
        )


def app_of(source: Source) -> Top:
    from fairlane.cli.top import Top

    return Top(Poller(source.read, every_s=3600), "req", "redis://h:1")


async def settle(pilot: Any, app: Top) -> None:
    await app._poller.look()
    await pilot.pause()


def shown(app: Top) -> str:
    """Returns what the terminal shows, without colours."""
    return "\n".join(
        "".join(part.text for part in line) for line in app.screen._compositor.render_strips()
    )


@in_event_loop
async def test_it_shows_rates_lanes_and_requests_in_80_columns():
    app = app_of(Source())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await settle(pilot, app)
        text = shown(app)
        for words in ("done    50/s", "alpha", "beta", "gamma", "acme", "paused", "2/3", "500"):
            assert words in text, text
        assert "   9 ████" in text
        assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.rest
@in_event_loop
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (40, 12)])
async def test_long_names_fit_a_narrow_terminal(size: tuple[int, int]):
    class Long(Source):
        async def read(self) -> Snapshot:
            oldest = request("oldest-" + "o" * 120, tenant="t" * 120, waiting=400, dead=3)
            many = [request(f"import-{n}-" + "x" * 60, done=10**6) for n in range(40)]
            long = worker("host-" + "h" * 80 + ":1234", host="h" * 80)
            return snapshot_of(oldest, *many, workers=(long,), oldest=oldest)

    app = app_of(Long())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        lines = shown(app).splitlines()
        assert len(lines) == size[1]
        assert [line.split()[0] for line in lines[1:6]] == [
            *("waiting", "done", "waited", "workers", "requests"),
        ]
        table = app.query_one("#rows")
        assert not table.show_horizontal_scrollbar
        heads = next(line for line in lines if "REQUEST" in line).split()
        assert heads[:2] == ["REQUEST", "PRIO*"]
        assert ("TENANT" in heads) == (size[0] == 80)
        await pilot.press("w")
        await pilot.pause()
        assert not table.show_horizontal_scrollbar
        for _ in range(9):  # only by a column that is there
            await pilot.press("s")
            await pilot.pause()
            assert "*" in shown(app)


@pytest.mark.rest
@in_event_loop
async def test_keys_filter_sort_and_show_the_workers():
    app = app_of(Source())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("slash", *"bet", "enter")
        await pilot.pause()
        assert "beta" in shown(app)
        assert "gamma" not in shown(app)
        await pilot.press("escape")
        await pilot.press("s", "s", "s")
        await pilot.pause()
        assert "WAITING*" in shown(app)
        text = shown(app)
        assert text.index(" beta ") < text.index(" gamma ")
        await pilot.press("w")
        await pilot.pause()
        text = shown(app)
        assert "h:2" in text
        assert "LATE" in text
        assert "0.1.0" in text


@pytest.mark.rest
@in_event_loop
async def test_a_held_view_stays_and_q_quits():
    source = Source()
    app = app_of(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("p")
        before = app._seen
        await settle(pilot, app)
        assert app._seen is before
        assert "VIEW PAUSED" in shown(app)
        await pilot.press("p")
        await pilot.pause()
        assert app._seen is not before
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.rest
@in_event_loop
async def test_an_outage_shows_a_banner_and_the_view_goes_on():
    source = Source()
    app = app_of(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        source.away = "Redis at h does not answer"
        await settle(pilot, app)
        assert "Redis at h does not answer; trying again" in shown(app)
        assert "alpha" in shown(app)
        source.away = ""
        await settle(pilot, app)
        assert "does not answer" not in shown(app)


@in_event_loop
async def test_text_from_redis_cannot_command_the_terminal():
    class Hostile(Source):
        async def read(self) -> Snapshot:
            return snapshot_of(
                request(f"x{ESCAPE}", tenant=ESCAPE, state=ESCAPE),
                workers=(worker(f"w{ESCAPE}", host=ESCAPE, release=ESCAPE),),
            )

    app = app_of(Hostile())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("w")
        await pilot.pause()
        assert "\x1b" not in shown(app)
        assert "\x07" not in shown(app)


def test_a_summary_of_late_workers_is_in_words():
    found = snapshot_of(request("r1"), workers=(worker("h:1"),))
    frames = [frame_of(1, found, Rates(done=12_345.0, failed=0.0))]
    assert "done    12.3k/s" in top.summary(found, frames)[1]


def test_lanes_that_do_not_fit_are_counted():
    many = [request(f"r{n}", priority=n) for n in range(9)]
    lines = top.lane_lines(snapshot_of(*many), 5)
    assert len(lines) == 5
    assert lines[-1].strip() == "... and 5 less urgent priorities"


def test_a_pipe_is_refused_in_one_sentence(program: Program):
    program("top").refused(2, "needs a terminal")


@pytest.mark.rest
@in_event_loop
async def test_enter_shows_a_request_in_full_and_a_question_mark_the_keys():
    class Odd(Source):
        async def read(self) -> Snapshot:
            name = "import-" + "x" * 60 + "\u202egpj"
            return snapshot_of(request(name, tenant="t" * 40), workers=(worker("h:1"),))

    app = app_of(Odd())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("enter")
        await pilot.pause()
        text = shown(app).replace("\n", "").replace("│", "").replace(" ", "")
        assert "fairlanewhyimport-" in text
        assert "t" * 40 in text
        assert "\u202e" not in text
        assert "\\u202e" in text
        await settle(pilot, app)  # the table goes on below
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert "pause the view" in shown(app)
        await pilot.press("question_mark", "w")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert "health" in shown(app)
        await pilot.press("q", "q")
    assert app.return_code == 0


@pytest.mark.parametrize("column", top.WORKERS, ids=lambda column: column.name)
def test_workers_are_sorted_by_every_column_also_if_one_has_reported_nothing(column: Any):
    unknown = {"host": None, "pid": None, "started_ms": None, "units": None, "per_s": None}
    rows = [worker("h:1", per_s=2.0), worker("h:2", **unknown, release=None)]
    place = top.WORKERS.index(column)
    cells, more = top.cells_of(top.WORKERS, rows, "", place, 10)
    assert ({one[0] for one in cells}, more) == ({"h:1", "h:2"}, 0)
    assert top.cells_of(top.WORKERS, rows, "none", place, 10) == ([], 0)
    assert not any("None" in cell for row in cells for cell in row)
