"""Builds the Dockerfile's image, runs it without rights, and drains it by `docker stop`."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from tests.compose.engine import run
from tests.compose.python_image import find_base, size_of
from tests.compose.work import Host, Wrong
from tests.guide.blocks import ROOT
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.compose.engine import Engine

IMAGE = "fairlane-local/worker"
NAMES = ("fairlane-image-net", "fairlane-image-redis", "fairlane-image-worker")
HANDLERS = ROOT / "tests" / "compose" / "handlers.py"
BUILD_S = 600.0
MANY = 300
IDS = "import os; print(os.getuid(), os.getgid())"


def try_worker_image(engine: Engine, redis_image: str, folder: Path) -> None:
    """Builds the image and works with it; raises Wrong."""
    base = find_base(engine)
    words = ("--build-arg", f"BASE={base}", "--tag", IMAGE)
    offline = () if base.startswith("python:") else ("--network", "none")
    engine.say(f"$ docker build {' '.join(words)} .")
    engine.run("build", *offline, *words, str(ROOT), timeout=BUILD_S)
    own = size_of(engine, IMAGE) - size_of(engine, base)
    engine.say(f"  {IMAGE}: {own:.1f} MB above {base}")
    net, redis, worker = NAMES
    with _started(engine):
        engine.run("network", "create", net)
        engine.run("run", "--detach", "--name", redis, "--network", net, redis_image, *_server())
        work_in_container(engine, Host(f"redis://{_address(engine, redis)}:6379", folder), worker)


def _server() -> tuple[str, ...]:
    program = "if command -v valkey-server >/dev/null; then name=valkey; else name=redis; fi; "
    return ("sh", "-c", f"{program}exec $name-server --protected-mode no --save ''")


def work_in_container(engine: Engine, host: Host, worker: str) -> None:
    """Runs a worker as the Dockerfile's header shows, and checks it from outside."""
    net, redis, _ = NAMES
    engine.say(
        "$ docker run --init -e FAIRLANE_REDIS=... -v .../handlers.py:/app/handlers.py:ro ..."
    )
    engine.run(
        *("run", "--detach", "--init", "--read-only", "--cap-drop", "ALL", "--name", worker),
        *("--network", net, "--env", f"FAIRLANE_REDIS=redis://{redis}:6379"),
        *("--volume", f"{HANDLERS}:/app/handlers.py:ro"),
        *(IMAGE, "--handler", "handlers:shout", "--log-format", "json"),
    )
    sent = host.lines("image", MANY)
    host.submit(sent, "--id", "image", "--wait", "--timeout", "60")
    engine.say(f"  {host.check('image', sent)} results, line for line")
    user = engine.run("exec", worker, "python", "-c", IDS).strip()
    if user != "10001 10001":
        raise Wrong(f"the container's processes run as {user}")
    health = "{{.State.Health.Status}}"
    wait_until(
        lambda: engine.run("inspect", "--format", health, worker).strip() == "healthy",
        PATIENCE_S, every=0.5, why="the container is healthy",
    )  # fmt: skip
    engine.say(f"  user {user}, healthy")
    engine.run("stop", "--time", "30", worker)
    code = engine.run("inspect", "--format", "{{.State.ExitCode}}", worker).strip()
    last = json.loads(logs_of(engine, worker)[-1])["message"]
    engine.say(f"$ docker stop: exit code {code}, {last}")
    if code != "0" or f"{MANY} sub-requests done" not in last:
        raise Wrong(f"the worker ended with {code}: {last}")


def logs_of(engine: Engine, worker: str) -> list[str]:
    """Returns the lines of the container, whose log is on stderr."""
    return run(["sh", "-c", f"docker logs {worker} 2>&1"], engine.env).splitlines()


def _address(engine: Engine, container: str) -> str:
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return engine.run("inspect", "--format", form, container).strip()


@contextlib.contextmanager
def _started(engine: Engine) -> Iterator[None]:
    """Removes the containers and the network, before and after."""
    net, *containers = NAMES
    _remove(engine, net, containers)
    try:
        yield
    except Exception:
        for line in logs_of(engine, NAMES[-1]):
            engine.say(f"  {line}")
        raise
    finally:
        _remove(engine, net, containers)


def _remove(engine: Engine, net: str, containers: list[str]) -> None:
    engine.can("rm", "--force", "--volumes", *containers)
    engine.can("network", "rm", net)
