"""The command line: `fairlane`, and `rq-submit` and `rq-worker` for two of its commands.

stdout has data, stderr has messages. Exit codes: 0 ok, 1 some sub-requests dead or the request
cancelled, 2 usage, 3 not found, 4 timed out, 5 Redis unreachable or unfit, 130 interrupted.
"""

from __future__ import annotations

__all__ = ["main", "submit_main", "worker_main"]


def main() -> None:
    """The command `fairlane`."""
    _run("fairlane")


def submit_main() -> None:
    """The command `rq-submit`, which is `fairlane submit`."""
    _run("rq-submit", "submit")


def worker_main() -> None:
    """The command `rq-worker`, which is `fairlane worker`."""
    _run("rq-worker", "worker")


def _run(called_as: str, name: str | None = None) -> None:
    import gc
    import sys

    try:
        from fairlane.cli.program import run

        status = run(called_as, name)
    except KeyboardInterrupt:  # before the command began
        status = 130
    gc.freeze()  # else the interpreter searches all modules for garbage as it ends
    sys.exit(status)
