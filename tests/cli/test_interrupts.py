"""Tests that Ctrl-C ends a command whenever it comes."""

from __future__ import annotations

import subprocess
import sys

from tests.support.wait import PATIENCE_S

FREED = """
import signal, time
from fairlane.cli.program import keep_interrupts

class Freed:
    def __del__(self):
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner of tests may ignore it
keep_interrupts()
Freed()
try:
    time.sleep(3600)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_that_comes_while_an_object_is_freed_is_not_lost():
    ran = subprocess.run(
        [sys.executable, "-c", FREED],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")
