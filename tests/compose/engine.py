"""Provides a container engine: the one that runs here, or a private one while it is needed.

The private one has a socket, a data folder and a process id of its own, makes no firewall rule and
changes no kernel setting: ports published on 127.0.0.1 go through Docker's own proxy process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COMMAND_S = 120.0
INSTALL_S = 600.0
LAST_LINES = 25
BRIDGE = Path("/sys/class/net/docker0")
# docker-cli is a part of docker.io until Debian 12.
PACKAGES = {"dockerd": "docker.io", "docker": "docker-cli", "docker-compose": "docker-compose"}

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class NoEngine(Exception):
    """There is no container engine, and none may be installed or started here."""


class EngineFailed(Exception):
    """A command of the engine, or the engine itself, ended with an error."""


@dataclass(frozen=True)
class Engine:
    """A running engine: the environment that names it, and where to print what is done."""

    env: Mapping[str, str]
    say: Callable[[str], None]

    def run(self, *words: str, timeout: float = COMMAND_S) -> str:
        """Returns what `docker WORDS` prints; raises EngineFailed."""
        return run(["docker", *words], self.env, timeout)

    def failure(self, *words: str, timeout: float = COMMAND_S) -> str:
        """Returns why `docker WORDS` failed; nothing if it did not."""
        try:
            self.run(*words, timeout=timeout)
        except EngineFailed as failure:
            return str(failure)
        return ""

    def can(self, *words: str) -> bool:
        return not self.failure(*words)

    def compose(self) -> list[str]:
        """Returns the words that start compose, the second edition if it is here; else none."""
        if self.can("compose", "version"):
            return ["docker", "compose"]
        return ["docker-compose"] if _which("docker-compose") else []


def run(words: list[str], env: Mapping[str, str], timeout: float = COMMAND_S) -> str:
    """Returns what a command prints; raises EngineFailed with its error output."""
    try:
        done = subprocess.run(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise EngineFailed(f"there is no {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"{' '.join(words)}: no end after {timeout:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise EngineFailed(said or f"{' '.join(words)}: exit {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def run_engine(say: Callable[[str], None]) -> Iterator[Engine]:
    """Yields the engine that answers here, else installs and runs one; NoEngine, EngineFailed."""
    engine = Engine(dict(os.environ), say)
    answers = engine.can("version")
    if not answers and os.geteuid() != 0:
        raise NoEngine("no container engine answers, and only root can start one")
    wanted = [] if answers else ["dockerd", "docker"]
    wanted += [] if engine.compose() else ["docker-compose"]
    _install([name for name in wanted if not _which(name)], say)
    if answers:
        say(f"engine: {_describe(engine)}, which runs here")
        yield engine
        return
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as folder:
        engine = Engine({**os.environ, "DOCKER_HOST": f"unix://{folder}/engine.sock"}, say)
        with _private(engine, Path(folder)):
            yield engine


def _install(missing: list[str], say: Callable[[str], None]) -> None:
    if not missing:
        return
    if os.geteuid() != 0 or not _which("apt-get"):
        why = "only root can install it" if os.geteuid() else "there is no apt to install it with"
        raise NoEngine(f"{' and '.join(missing)} not found, and {why}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update", "-qq"], env, INSTALL_S)
        packages = [PACKAGES[name] for name in missing if _is_package(PACKAGES[name])]
        say(f"installing with apt: {' '.join(packages)}")
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        run(words, env, INSTALL_S)
    except EngineFailed as error:
        raise NoEngine(f"{' and '.join(missing)} cannot be installed here: {error}") from None


def _is_package(name: str) -> bool:
    try:
        return bool(run(["apt-cache", "show", name], os.environ))
    except EngineFailed:
        return False


@contextlib.contextmanager
def _private(engine: Engine, folder: Path) -> Iterator[None]:
    """Runs a private engine; it, its network and its data are removed afterwards."""
    had_bridge = BRIDGE.exists()
    process = _start(engine, folder)
    try:
        engine.say(f"engine: {_describe(engine)}, started as process {process.pid}")
        yield
    finally:
        _stop(process)
        engine.say(f"engine: process {process.pid} ended")
        ip = _which("ip")
        if ip and BRIDGE.exists() and not had_bridge:
            run([ip, "link", "delete", BRIDGE.name], engine.env)


def _start(engine: Engine, folder: Path) -> subprocess.Popen[bytes]:
    """Starts dockerd; if its default file system fails, with the plainest one."""
    log = folder / "engine.log"
    for more in ([], ["--storage-driver", "vfs"]):
        process = _spawn(engine, folder, log, more)
        try:
            wait_until(
                lambda: process.poll() is not None or engine.can("version"),  # noqa: B023
                PATIENCE_S,
                every=0.2,
                why="dockerd answers",
            )
        except AssertionError:
            _stop(process)
        if process.poll() is None:
            return process
    last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    raise NoEngine("dockerd does not run on this machine:\n" + "\n".join(last))


def _spawn(engine: Engine, folder: Path, log: Path, more: list[str]) -> subprocess.Popen[bytes]:
    words = [_which("dockerd") or "dockerd", "--host", engine.env["DOCKER_HOST"]]
    words += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/run"]
    (folder / "engine.json").write_text("{}")  # not the settings of this machine's own engine
    words += ["--pidfile", f"{folder}/engine.pid", "--config-file", f"{folder}/engine.json"]
    words += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", *more]
    with log.open("ab") as said:
        return subprocess.Popen(
            words,
            env={**engine.env, "PATH": _path()},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for this program: the containers are removed first
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
        )


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _describe(engine: Engine) -> str:
    version = engine.run("version", "--format", "{{.Server.Version}}").strip()
    driver = engine.run("info", "--format", "{{.Driver}}").strip()
    return f"Docker {version} with {driver}"


def _which(name: str) -> str | None:
    return shutil.which(name, path=_path())


def _path() -> str:
    """Returns PATH with the folders of the system's own programs, where dockerd is."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
