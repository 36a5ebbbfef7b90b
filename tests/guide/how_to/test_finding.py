"""Tests docs/finding: its blocks run in order, and print what the page shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import END_S, ON_ONE_KIND, ROOT, Block, Shells, blocks_of, environment
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "watch" / "finding.md"


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    blocks = [block._replace(text=also_stderr(block)) for block in blocks_of(PAGE)]
    with Shells(tmp_path, environment(redis_url)) as shells:
        printed = {}
        for block in blocks:
            if "fairlane list --queue shop\n" in block.text:
                wait_until(lambda: is_at_rest(shells), END_S, why="only report-1 is worked on")
            printed[block.text] = shells.run(block)

    def by(command: str) -> str:
        (found,) = [shown for text, shown in printed.items() if command in text]
        return found

    assert "done, 2 dead\n" in by("fairlane wait order-1")
    assert "exit code 1\ndone\n" in by("fairlane wait order-1")
    check_requests(by("list --queue shop\n"), by("--state running"), by("AFTER="))
    check_causes(by("fairlane why"), by("queue.why"))
    (worker,) = rows(by("fairlane workers"))[1:]
    assert (worker[1], worker[-2:]) == ("alive", ["1", "lease"])
    check_errors(by("fairlane errors"))
    endings = re.findall(
        r"^\d+-\d  \S+Z  done(?:, 2 dead)?  (\S+)  ", by("fairlane completions"), re.MULTILINE
    )
    assert sorted(endings) == ["order-1", "order-3"]
    watched = by("--watch").splitlines()
    assert watched[0].startswith("fairlane: request report-1 waits for what runs under 1 permit")
    assert watched[1].startswith("cancel")
    assert "cancelled" in watched[-1]
    assert by("--queue shp") == (
        "fairlane: no request of queue shp is listed\n"
        "fairlane: queue shp has never been used on this Redis; did you mean shop?\n"
    )
    assert "\n1 ValueError: bad amount\n" in by("list_requests(")
    assert by("fairlane pause") == (
        "fairlane: 1 request would be paused: order-2; give --yes to do it\n"
        "exit code 2\n1 request changed\n1 request cancelled\n"
    )
    assert by("fairlane delete") == "4 requests deleted\nreport-2\n"
    assert by("import Change") == "1 chosen: report-2\n1 0 {}\n"


def is_at_rest(shells: Shells) -> bool:
    """Returns True if order-2 has done what it can, and the worker holds only report-1."""
    (order,) = rows(shells.run(Block("bash", "fairlane list --queue shop --id order-2")))[1:]
    (worker,) = rows(shells.run(Block("bash", "fairlane workers --queue shop")))[1:]
    return order[3] == "1" and order[6] == "0/3" and worker[-2:] == ["1", "lease"]


def also_stderr(block: object) -> str:
    """Returns the block with both streams of a shell as one."""
    text, language = block.text, block.language  # type: ignore[attr-defined]
    is_front = language == "bash" and not block.is_background  # type: ignore[attr-defined]
    return f"exec 2>&1\n{text}" if is_front else text


def check_requests(listed: str, filtered: str, paged: str) -> None:
    found = rows(listed)[1:]
    assert [row[0] for row in found[:2]] == ["order-2", "report-1"]
    assert {row[0] for row in found[2:]} == {"order-3", "order-1"}
    assert found[1][6] == "1/1"
    running, ended, late = filtered.split("REQUEST ")[1], filtered.split("REQUEST ")[2], filtered
    assert "order-2" in running
    assert sorted(re.findall(r"^order-\d", ended, re.MULTILINE)) == ["order-1", "order-3"]
    (page,) = [json.loads(line) for line in late.splitlines() if line.startswith("{")]
    assert [one["id"] for one in page["requests"]] == ["report-1"]
    names = re.findall(r"^(?:order|report)-\d", paged, re.MULTILINE)
    assert names == ["order-2", "report-1"]


def check_causes(printed: str, in_a_program: str) -> None:
    assert re.search(
        r"^waits     1 of 1 permit is held by 127\.0\.0\.1:\d+$", printed, re.MULTILINE
    )
    retry = r"the sub-request that waits is to be tried again at .*, after ValueError: bad amount"
    assert re.search(rf"^waits     {retry}$", printed, re.MULTILINE)
    assert re.match(rf"retry \d+ {retry}\nNone ", in_a_program)


def check_errors(printed: str) -> None:
    assert "1 dead (died): the process of the handler ended by exit 7" in printed
    assert "1 dead (failed every attempt): ValueError: bad amount" in printed
    assert "1 waits (to be tried again), the last error: ValueError: bad amount" in printed
    prints = re.findall(r"^([0-9a-f]{10}) .*ValueError", printed, re.MULTILINE)
    assert len(prints) == 2
    assert len(set(prints)) == 1
