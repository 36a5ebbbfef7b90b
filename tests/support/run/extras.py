"""Which tests need the extras `web` and `spark`. The tests of the core pass without these extras.

The continuous integration installs both, and then all tests are collected.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
# One package of each extra, and the folders and files whose subject needs it.
PACKAGES = {"web": "starlette", "spark": "pyspark"}
NEEDED_BY = {
    "web": (
        *("web", "guide"),
        "live/test_poller.py",
        "metrics/test_samples.py",
        "package/test_options_table.py",
        "tracing/test_http.py",
    ),
    # The tests of an archive and of its report need pyarrow, which the extra `spark` brings.
    "spark": (
        *("spark", "archive", "report", "cli/commands/test_archive.py"),
        *("cli/commands/test_report.py", "drivers/test_url_secrets.py"),
    ),
}


@cache
def is_installed(extra: str) -> bool:
    """Returns whether the packages of an extra are installed."""
    try:
        return importlib.util.find_spec(PACKAGES[extra]) is not None
    except ModuleNotFoundError:
        return False


def missing() -> list[str]:
    """Returns the extras that are not installed."""
    return [extra for extra in PACKAGES if not is_installed(extra)]


def needs_missing(path: Path) -> bool:
    """Returns whether the tests of this folder or file need an extra that is not installed."""
    return any(path == TESTS / name for extra in missing() for name in NEEDED_BY[extra])


def lines() -> list[str]:
    """Returns a line for each extra that is not installed: what is not collected."""
    return [
        f"not collected without the extra {extra}: {', '.join(NEEDED_BY[extra])}"
        for extra in missing()
    ]
