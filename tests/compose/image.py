"""Provides the image of the containers: the official one, or one of this machine's programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.embedded.server import fit_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.embedded.server import ServerBinary
    from tests.compose.engine import Engine

OFFICIAL = "redis:7.4.2@sha256:fbdbaea47b9ae4ecc2082ecdb4e1cea81e32176ffb1dcf643d422ad07427e5d9"
PULL_S = 180.0
_LIBRARY = re.compile(r"(/\S+) \(0x")


class NoProgram(Exception):
    """A program that the image needs is not on this machine."""


def find_image(engine: Engine, wanted: str = OFFICIAL) -> str:
    """Returns an image that is there: the wanted one, or a local one if no registry has it."""
    if engine.can("image", "inspect", wanted):
        engine.say(f"image: {wanted}, which the engine has")
        return wanted
    failure = engine.failure("pull", "--quiet", wanted, timeout=PULL_S)
    if not failure:
        engine.say(f"image: {wanted}, pulled")
        return wanted
    engine.say(f"{wanted} cannot be pulled ({failure.splitlines()[-1]}): making one")
    return make_image(engine)


def make_image(engine: Engine) -> str:
    """Imports an image of four programs and their libraries, nothing else; returns its name."""
    if sys.platform != "linux":
        raise NoProgram("an image of this machine's programs can be made on Linux only")
    server, cli = _server_with_client()
    programs = {
        f"/usr/bin/{server.path.name}": server.path,
        f"/usr/bin/{cli.name}": cli,
        "/bin/sh": find_program("sh"),
        "/bin/sleep": find_program("sleep"),
    }
    name = f"fairlane-local/{server.path.name}:{'.'.join(map(str, server.version))}"
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        archive = Path(folder, "root.tar")
        count = _pack(programs, archive)
        engine.run("import", "--change", "ENV PATH=/usr/bin:/bin", str(archive), name)
        size = archive.stat().st_size / 1e6
    engine.say(f"image: {name}, made of {server} and {count} files, {size:.0f} MB")
    return name


def _pack(programs: dict[str, Path], archive: Path) -> int:
    """Writes the root folder of an image as a tar file; returns how many files are in it."""
    files = dict(programs)
    for program in programs.values():
        files.update((str(library), library) for library in libraries(program))
    with tarfile.open(archive, "w") as tar:
        for folder, mode in (("data", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, path in sorted(files.items()):
            tar.add(path.resolve(), arcname=name.lstrip("/"), recursive=False)
    return len(files)


def libraries(program: Path) -> Iterator[Path]:
    """Returns the shared libraries of a program, its loader among them."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    if "not found" in said.stdout:
        raise NoProgram(f"{program} lacks a library: {said.stdout.strip()}")
    return (Path(path) for path in _LIBRARY.findall(said.stdout))


def _server_with_client() -> tuple[ServerBinary, Path]:
    """Returns the newest server that has a client, beside it or on PATH."""
    for server in fit_servers():
        name = f"{server.path.name.removesuffix('-server')}-cli"
        beside = server.path.resolve().with_name(name)
        if beside.is_file() or shutil.which(name):
            return server, beside if beside.is_file() else find_program(name)
    raise NoProgram("no server here has a client to make an image of (Debian: redis-tools)")


def find_program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise NoProgram(f"there is no {name} here to make an image of")
    return Path(found)
