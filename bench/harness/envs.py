"""Makes an environment for each peer, once, in a cache folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import support

if TYPE_CHECKING:
    from bench.harness.registry import Peer

    from fairlane.embedded.server import ServerBinary

SCRIPTS = support.ROOT / "bench" / "peers"
_INSTALL_S = 600


class Missing(Exception):
    """Reports that a peer cannot be installed here; the message stands in its row."""


@dataclass(frozen=True)
class Env:
    """Holds the command of a peer's script, and the peer's version."""

    command: list[str]
    version: str
    folder: Path | None = None


def home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache) / "fairlane-bench" if cache else support.ROOT / "build" / "bench-envs"


def prepare(peer: Peer, server: ServerBinary) -> Env:
    """Returns the environment of a peer, and makes it if it is absent.

    Raises Missing if the peer cannot be installed, or cannot run on this server.
    """
    if peer.needs > (0, 0) and (server.flavour != "redis" or server.version[:2] < peer.needs):
        needed = ".".join(map(str, peer.needs))
        raise Missing(f"needs Redis {needed} or newer, and the server is {server}")
    try:
        return {"python": _python, "node": _node, "ruby": _ruby}[peer.kind](peer)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        lines = [line for line in output.strip().splitlines() if line.strip()]
        raise Missing(f"cannot be installed: {lines[-1] if lines else error}") from error


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_INSTALL_S, cwd=folder
    )
    return done.stdout


def _is_made(folder: Path, peer: Peer) -> bool:
    """Returns whether the stamp of the environment names these packages and versions."""
    stamp = folder / "installed.json"
    return stamp.exists() and json.loads(stamp.read_text()) == list(peer.packages)


def _stamp(folder: Path, peer: Peer) -> None:
    (folder / "installed.json").write_text(json.dumps(peer.packages))


def _fresh(peer: Peer) -> Path:
    folder = home() / peer.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"making the environment of {peer.title} …", file=sys.stderr)
    return folder


def _python(peer: Peer) -> Env:
    script = str(SCRIPTS / peer.script)
    if not peer.packages:
        ours = "fairlane" if peer.name == "fairlane" else "redis"
        return Env([sys.executable, script], _distribution(sys.executable, ours))
    folder = home() / peer.name
    python = folder / "bin" / "python"
    if not _is_made(folder, peer):
        _fresh(peer)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        _run([*pip, *peer.packages])
        _stamp(folder, peer)
    name = peer.packages[0].partition("==")[0].partition("[")[0]
    return Env([str(python), script], _distribution(str(python), name), folder)


def _distribution(python: str, name: str) -> str:
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return _run([python, "-c", code, name]).strip()


def _node(peer: Peer) -> Env:
    if not (shutil.which("node") and shutil.which("npm")):
        raise Missing("needs node and npm (Debian: apt install nodejs npm)")
    folder = home() / peer.name
    if not _is_made(folder, peer):
        _fresh(peer)
        _run(["npm", "install", "--silent", "--no-fund", "--no-audit", *peer.packages], folder)
        _stamp(folder, peer)
    # The copy is necessary because node searches for packages beside the script.
    shutil.copy(SCRIPTS / peer.script, folder / peer.script)
    package = folder / "node_modules" / peer.packages[0].partition("@")[0] / "package.json"
    node = _run(["node", "--version"]).strip()
    version = f"{json.loads(package.read_text())['version']} on Node {node.removeprefix('v')}"
    return Env(["node", str(folder / peer.script)], version, folder)


def _ruby(peer: Peer) -> Env:
    """Returns the system's Ruby; root installs Debian's package if it is absent."""
    query = ["ruby", "-e", 'require "sidekiq"; puts Sidekiq::VERSION + " on Ruby " + RUBY_VERSION']
    if (
        not shutil.which("ruby")
        or subprocess.run(query, capture_output=True, check=False).returncode
    ):
        if os.geteuid() or not shutil.which("apt-get"):
            raise Missing(f"needs Debian's package {peer.packages[0]}, which only root can install")
        print(f"installing {peer.packages[0]} …", file=sys.stderr)
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *peer.packages])
    return Env(["ruby", str(SCRIPTS / peer.script)], _run(query).strip())
