"""Tests the guide's second chapter: its blocks run in order, and print what it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import GUIDE, ON_ONE_KIND, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = GUIDE / "02-when-things-go-wrong.md"
FINGERPRINT = r"[0-9a-f]{10}"


class Printed:
    """The output of the blocks, found by a command that is in one of them only."""

    def __init__(self, url: str, folder: Path) -> None:
        with Shells(folder, environment(url)) as shells:
            self._said = [(block.text, shells.run(block)) for block in blocks_of(PAGE)]

    def by(self, command: str) -> str:
        """Returns the output of the one block with this command."""
        (said,) = [said for text, said in self._said if command in text]
        return said


@pytest.mark.slow
@pytest.mark.rest
@ON_ONE_KIND
def test_the_chapter_runs(redis_url: str, tmp_path: Path):
    assert sum(block.is_background for block in blocks_of(PAGE)) == 2
    printed = Printed(redis_url, tmp_path)
    check_failures(printed)
    check_requeued(printed)
    check_changed(printed)
    check_repaired(printed)


def check_failures(printed: Printed) -> None:
    """Checks each of the four ways to die, with its reason."""
    assert printed.by("fairlane wait pays") == (
        "done, 4 dead\nexit code 1\n"
        "anna 5 fee 20\nbert 10 fee 10\n\n\n\n\ngina 50 fee 2\nexit code 1\n"
    )
    listed = printed.by("fairlane dead list pays\n")
    assert (
        "pays  done, 4 dead  4 kept: 1 failed every attempt, 1 died, 1 rejected, 1 timed out\n"
    ) in listed
    for reason, error in (
        ("rejected", "twelve is no amount"),
        ("died", r"the process of the handler ended by exit 7"),
        ("timed out", r"the handler took longer than its time limit of 0\.5 s"),
        ("failed every attempt", "ZeroDivisionError"),
    ):
        assert re.search(rf"^{FINGERPRINT}  1 dead \({reason}\): {error}", listed, re.MULTILINE)
    hung = r'0\.5 s\nStack \(most recent call first\):\n  File ".*bank\.py", .* in pay\n'
    assert re.search(hung, printed.by('queue.request("pays").dead()'))


def check_requeued(printed: Printed) -> None:
    """Checks that the repaired handler does all but what can't be done."""
    again = printed.by("fairlane dead requeue").splitlines()
    assert [line for line in again if line.startswith("reopened  3 dead requeued, ")]
    assert {"dora 20 fee 5", "emil 25 fee 4", "fred 0 fee 100"} <= {*again}
    assert printed.by("fairlane dead drop") == "1\n"


def check_changed(printed: Printed) -> None:
    """Checks a request that was paused, given more workers, and done though one was killed."""
    assert "state     paused\n" in printed.by("fairlane pause letters")
    changed = printed.by("fairlane resume letters")
    assert changed.startswith("limit 4, priority 9\nactive\n")
    assert "queue     night, priority 9\n" in changed
    assert printed.by("kill -9").startswith("done\n")
    late = printed.by("fairlane dead list reminders")
    assert "reminders\nexit code 1\n" in late
    assert re.search(rf"^{FINGERPRINT}  \d+ dead \(past the deadline\): ", late, re.MULTILINE)
    lanes = [line.split()[0] for line in printed.by("fairlane stats").splitlines()]
    assert lanes in (["LANE", "5", "9", "all"], ["LANE", "5", "9", "50", "all"])  # paused how soon?


def check_repaired(printed: Printed) -> None:
    """Checks that deleted keys are back, stalled work moves, and the full queue has room."""
    assert "queue day is empty: " in printed.by("scan_iter")
    found, repaired = printed.by("fairlane doctor --queue day --repair").split("exit code 1\n")
    assert re.search(r"^bad +forgotten +forgotten  is not in `active`", found, re.MULTILINE)
    assert re.search(r"^fixed +forgotten +forgotten ", repaired, re.MULTILINE)
    assert "requests  1 active\n" in repaired
    judged = printed.by("still bad")
    assert re.search(r"^bad +workers +no worker beats, and 1 unfinished", judged, re.MULTILINE)
    assert re.search(r"^remedy +workers +start one: fairlane worker", judged, re.MULTILINE)
    assert printed.by("fairlane wait forgotten").startswith("done\nok      workers ")
    assert printed.by("--max-waiting 400").endswith("first\nexit code 5\n")
    assert printed.by("fairlane cancel first") == "cancelled\nsecond\n"
    paused = printed.by("fairlane queue pause --queue day")
    assert re.match(r"queue day is paused until .* UTC \(in 30 min\)\nqueue     day\n", paused)
    assert re.search(r"^paused    until 20.* UTC\nqueue day is resumed\n$", paused, re.MULTILINE)
