"""Valkey, where it can be had: on PATH, or unpacked from a package of Debian's.

As a program (`python -m tests.support.valkey`) this fetches it, without root and without
installing anything: into `backends/` beside the interpreter. Debian 12 has it among its backports.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.embedded.programs import _identify

if TYPE_CHECKING:
    from fairlane.embedded import ServerBinary

HOME = Path(sys.prefix) / "backends"
PROGRAM = "valkey-server"
PACKAGES = ("valkey-server", "valkey-tools")
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_S = 120


@cache
def find() -> ServerBinary | None:
    """The newest there is here."""
    places = [shutil.which(PROGRAM), str(HOME / "usr" / "bin" / PROGRAM)]
    found = [_identify(Path(place)) for place in places if place and Path(place).is_file()]
    fit = [one for one in found if one is not None]
    return max(fit, key=lambda one: one.version, default=None)


def why_not() -> str:
    """The sentence that says why there is none."""
    reason = HOME / "why-not"
    with contextlib.suppress(OSError):
        return reason.read_text().strip()
    return "no valkey-server on PATH, and none was fetched: `make test-backends` tries to"


def fetch() -> str | None:
    """Fetch it; the sentence that says why not, or None."""
    if find() is not None:
        return None
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "no valkey-server on PATH, and no apt-get to fetch it with"
    with tempfile.TemporaryDirectory(prefix="fl-apt-") as name:
        folder = Path(name)
        said = ""
        for options in ([], _backports(folder)):
            if options is None:
                continue
            is_there, said = _download(folder, options)
            if is_there:
                _unpack(folder)
                find.cache_clear()
                return None if find() else "the package's valkey-server does not run here"
    return f"no valkey-server on PATH, and Debian's packages bring none here: {said}"


def _backports(folder: Path) -> list[str] | None:
    """The options by which apt reads the backports of this Debian, and touches nothing else."""
    mirror, codename = _mirror(folder)
    if not mirror or not _KEYS.exists():
        return None
    source = folder / "backports.list"
    source.write_text(f"deb [signed-by={_KEYS}] {mirror} {codename}-backports main\n")
    for part in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": _user(),
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    _run(folder, "apt-get", *words, "update")
    return words


def _mirror(folder: Path) -> tuple[str, str]:
    """Where this machine has its Debian from, and its name; empty where it is none."""
    form = "$(ORIGIN) $(REPO_URI) $(CODENAME)"
    said = _run(folder, "apt-get", "indextargets", "--format", form, "Created-By: Packages")
    for line in said.stdout.splitlines():
        origin, *rest = line.split()
        if origin == "Debian" and len(rest) == 2 and rest[1].isalpha():
            return rest[0], rest[1]
    return "", ""


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _download(folder: Path, options: list[str]) -> tuple[bool, str]:
    """Both packages into a folder; the last line that apt said."""
    said = _run(folder, "apt-get", *options, "download", *PACKAGES)
    lines = said.stderr.strip().splitlines() or ["?"]
    return said.returncode == 0, lines[-1].removeprefix("E: ")


def _unpack(folder: Path) -> None:
    HOME.mkdir(exist_ok=True)
    for package in folder.glob("*.deb"):
        _run(folder, "dpkg-deb", "--extract", str(package), str(HOME))


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=APT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} took more than {APT_S} s")


def main() -> int:
    """Fetch it, or remember why not; never a failure."""
    reason = fetch()
    HOME.mkdir(exist_ok=True)
    if reason is None:
        (HOME / "why-not").unlink(missing_ok=True)
    else:
        (HOME / "why-not").write_text(reason + "\n")
    sys.stdout.write(f"{find() or reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
