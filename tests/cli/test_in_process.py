"""Tests that a command in the process of the tests leaves what it leaves in its own process."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from tests.cli.program import NO_SERVER, Ended
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program

COMMANDS = (
    *("--help", "--version", "status", "list --json", "queues", "status gone", "bogus"),
    *("submit - --id mine", "submit gone", "submit - --wait --timeout 0.1 --id mine"),
    *("results gone", "status --bogus", f"--redis {NO_SERVER} status", "acl", "wait gone"),
)


def state() -> list[object]:
    """Returns what a command may change in its process."""
    signals = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    loggers = [logging.getLogger(name) for name in ("", "fairlane")]
    return [
        *(sys.stdin, sys.stdout, sys.stderr, *sys.argv, *sys.path, *signals, Path.cwd()),
        *((one.handlers, one.level, one.propagate, one.disabled) for one in loggers),
        *(settings.PATIENCE_S, dict(os.environ)),
    ]


@pytest.mark.rest
@for_each("words", COMMANDS)
def test_a_command_leaves_the_same_in_either_process(program: Program, words: str):
    before = state()
    here = program(*words.split(), stdin=b"a\nb\n")
    assert state() == before
    there = program.fork(*words.split(), stdin=b"a\nb\n")
    assert without_moment(here) == without_moment(there)


def without_moment(ended: Ended) -> Ended:
    """Returns what a command printed, without the time at which Redis answered."""
    return replace(ended, out=re.sub(rb'"now_ms": \d+', b"", ended.out))
