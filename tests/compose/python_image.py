"""Makes a base image for the Dockerfile if no registry has one: this machine's Python, and sh.

Its pip installs only the wheels that are in the image, so that a build needs no network.
"""

from __future__ import annotations

import ensurepip
import os
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.engine import run
from tests.compose.image import NoProgram, find_program, libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compose.engine import Engine

OFFICIAL = (
    "python:3.13.5-slim-bookworm"
    "@sha256:4c2cf9917bd1cbacc5e9b07320025bdb7cdf2df7b0ceaccb55e9dd7e30987419"
)
NEEDS = (  # of the build, of the package itself, and of its extra web
    *("hatchling", "click", "redis[hiredis]"),
    *("httpx2", "prometheus-client", "python-multipart", "starlette", "uvicorn"),
)
UNUSED = {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "lib2to3"}
PIP_CONF = "[global]\nno-index = true\nfind-links = /wheels\nroot-user-action = ignore\n"
OF_LIBC = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")  # wheels may name them
PULL_S = 180.0
DOWNLOAD_S = 300.0


def find_base(engine: Engine) -> str:
    """Returns the base image that the Dockerfile names, or one of this machine's Python."""
    if engine.can("image", "inspect", OFFICIAL):
        return OFFICIAL
    failure = engine.failure("pull", "--quiet", OFFICIAL, timeout=PULL_S)
    if not failure:
        return OFFICIAL
    engine.say(f"{OFFICIAL} cannot be pulled ({failure.splitlines()[-1]}): making one")
    return make_base(engine)


def make_base(engine: Engine) -> str:
    """Imports the image and returns its name."""
    name = f"fairlane-local/python:{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(prefix="fl-") as text:
        folder = Path(text)
        download(folder / "wheels")
        archive = folder / "root.tar"
        with tarfile.open(archive, "w") as tar:
            pack(tar, folder)
        path = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
        engine.run("import", "--change", path, str(archive), name)
        engine.say(f"image: {name}, {archive.stat().st_size / 1e6:.0f} MB")
    return name


def download(folder: Path) -> None:
    """Downloads the wheels with pip, as a user's build does."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *NEEDS]
    run(words, os.environ, DOWNLOAD_S)


def pack(tar: tarfile.TarFile, folder: Path) -> None:
    """Writes the root folder of the image."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    stdlib = Path(sysconfig.get_path("stdlib"))
    tar.add(stdlib, f"usr/local/lib/{version}", filter=_needed)
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    with zipfile.ZipFile(bundled) as wheel:
        wheel.extractall(folder / "pip")
    tar.add(folder / "pip", f"usr/local/lib/{version}/site-packages")
    tar.add(folder / "wheels", "wheels")
    (folder / "pip.conf").write_text(PIP_CONF)
    tar.add(folder / "pip.conf", "etc/pip.conf")
    python = Path(sys.executable).resolve()
    for name in ("python", "python3", version):
        tar.add(python, f"usr/local/bin/{name}")
    shell = find_program("sh")
    tar.add(shell.resolve(), "bin/sh")
    for library in sorted(set(_all_libraries(python, shell, stdlib))):
        tar.add(library.resolve(), _place(library))
    for name, mode in (("tmp", 0o1777), ("usr/bin", 0o755)):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    is_unused = name in UNUSED or name == "__pycache__" or name.startswith("config-3")
    return None if is_unused else entry


def _all_libraries(python: Path, shell: Path, stdlib: Path) -> Iterator[Path]:
    """Returns the libraries of the programs, and of each module that loads on this machine."""
    yield from libraries(python)
    yield from libraries(shell)
    libc = next(path for path in libraries(python) if path.name.startswith("libc.so"))
    yield from (beside for name in OF_LIBC if (beside := libc.with_name(name)).exists())
    for module in stdlib.glob("lib-dynload/*.so"):
        try:
            yield from libraries(module)
        except NoProgram:  # a module that nothing here can load, as tkinter without Tk
            continue


def _place(library: Path) -> str:
    """Returns where a library is in the image: a loader finds all others in /usr/lib."""
    usual = ("/lib", "/usr/lib")
    return str(library).lstrip("/") if str(library).startswith(usual) else f"usr/lib/{library.name}"


def size_of(engine: Engine, image: str) -> float:
    """Returns the size of an image in MB."""
    return int(engine.run("image", "inspect", "--format", "{{.Size}}", image)) / 1e6
