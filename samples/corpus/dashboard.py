"""Serves the dashboard while the demo runs, if the extra `web` is installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 15.0


@contextlib.contextmanager
def dashboard(url: str, queue: str) -> Iterator[str]:
    """Yields the address of the dashboard; "" if it cannot be served."""
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        yield ""
        return
    command = [sys.executable, "-m", "fairlane", "serve", "--queue", queue, "--port", "0"]
    with subprocess.Popen(
        command,
        env={**os.environ, "FAIRLANE_REDIS": url},  # not an argument: it may hold a password
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            try:
                server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                server.kill()
