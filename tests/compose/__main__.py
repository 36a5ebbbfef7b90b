"""`python -m tests.compose`: runs the cluster of docs/how-to/use/lines.md in containers.

Then the Dockerfile's image is built, and a worker in it works off a request.

Takes the container engine that runs here, else installs and starts a private one, which needs
root and Debian's packages. Prints what it does and what it sees. Exit: 0 all good, or nothing was
done because there is no engine (which is printed); 1 anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from redis import RedisError

from fairlane import FairlaneError
from tests.compose.cluster import FILE, UP_S, Cluster, Node, free_digits, service_of
from tests.compose.engine import Engine, EngineFailed, NoEngine, run, run_engine
from tests.compose.image import NoProgram, find_image
from tests.compose.work import Host, Wrong
from tests.compose.worker_image import try_worker_image
from tests.guide.blocks import (
    CLUSTER,
    PUBLISHED,
    REQUESTS,
    ROOT,
    Shells,
    blocks_of,
    environment,
    lines_of,
)
from tests.support.servers import server_process
from tests.support.servers.containers import image as wanted_image

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 5_000
SOME = 400
LAST_LINES = 40
FAILURES = (
    *(AssertionError, RedisError, FairlaneError, subprocess.TimeoutExpired),
    *(EngineFailed, NoProgram, Wrong),
)
_BEGAN = time.monotonic()


def say(text: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _BEGAN:6.1f} s  {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument("--project", default="fairlane-compose-run", help="of compose")
    parser.add_argument("--only-image", action="store_true", help="only try the Dockerfile")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with run_engine(say) as engine:
            image = find_image(engine, wanted_image())
            if not given.only_image:
                story(engine, image, given.project)
            with tempfile.TemporaryDirectory(prefix="fl-") as folder:
                try_worker_image(engine, image, Path(folder))
    except NoEngine as reason:
        say(f"skipped: {reason}")
        return 0
    except FAILURES as failure:
        say(f"WRONG: {failure}")
        return 1
    except KeyboardInterrupt:
        say("interrupted: what was started has been ended")
        return 130
    say("GOOD")
    return 0


def _interrupt(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt


def story(engine: Engine, image: str, project: str) -> None:
    cluster = Cluster(engine, image, project, free_digits())
    say(f"compose: {' '.join(engine.compose())} {cluster.compose('version', '--short').strip()}")
    with tempfile.TemporaryDirectory(prefix="fl-") as name, taken_down(cluster):
        folder = Path(name)
        host = Host(cluster.url, folder)
        read_the_readme(cluster, folder)
        show_nodes(cluster)
        work(host)
        survive(cluster, host)
        stop_and_start(cluster, host)
    run_container_tests(engine, image)


@contextlib.contextmanager
def taken_down(cluster: Cluster) -> Iterator[None]:
    """Prints the containers' logs if something fails; removes them and their volumes."""
    if left := cluster.left_behind():
        say(f"an earlier run left {len(left)} things of {cluster.project} behind: they go")
        cluster.compose("down", "--volumes")
    try:
        yield
    except Exception:
        with contextlib.suppress(EngineFailed):
            for line in cluster.compose("ps", "--all").splitlines():
                say(f"  {line}")
            for line in cluster.compose("logs", "--no-color", f"--tail={LAST_LINES}").splitlines():
                say(f"  {line}")
        raise
    finally:
        say("down -v")
        cluster.compose("down", "--volumes")
    if left := cluster.left_behind():
        raise Wrong(f"`down -v` left {left}")


def read_the_readme(cluster: Cluster, folder: Path) -> None:
    """Runs the page's three commands, in a clone's folder."""
    (folder / FILE.name).symlink_to(FILE)
    env = {**cluster.env, **environment(cluster.url)}
    env |= {name: value for name, value in cluster.env.items() if name.startswith("FAIRLANE_")}
    if cluster.engine.compose() == ["docker-compose"]:  # as the page has it: "or docker-compose"
        env["BASH_FUNC_docker%%"] = '() { shift; docker-compose "$@"; }'
    up, *others = blocks_of(REQUESTS, CLUSTER)
    with Shells(folder, env) as shells:
        say(f"$ {up.text.strip()}")
        shells.run(up, UP_S)
        for line in cluster.logs("form"):
            say(f"  {line}")
        shells.run(blocks_of(REQUESTS)[0])  # makes handlers.py and words.txt
        for block in others:
            here = block._replace(text=block.text.replace(PUBLISHED, cluster.url))
            for line in here.text.splitlines():
                say(f"$ {line}")
            shells.run(here)
        said = lines_of(folder / "shouted.txt")
    say(f"  shouted.txt: {' '.join(said)}")
    if said != ["ONE", "TWO", "THREE"]:
        raise Wrong("the words came back wrong")


def show_nodes(cluster: Cluster) -> None:
    for node in cluster.primaries():
        with cluster.client(node.port) as client:
            say(f"  primary 127.0.0.1:{node.port}: {client.dbsize()} keys, slots {spans(node)}")


def spans(node: Node) -> str:
    return ", ".join(f"{first}-{last}" for first, last in node.slots)


def work(host: Host) -> None:
    sent = host.lines("some", MANY)
    with host.worker(free_id(), "shout"):
        say(f"$ rq-submit {sent.name} --priority 5 --limit 3 --id some --wait, beside rq-worker")
        began = time.monotonic()
        host.submit(sent, "--priority", "5", "--limit", "3", "--id", "some", "--wait")
        took = time.monotonic() - began
    count = host.check("some", sent)
    say(f"  {count} results in {took:.1f} s, line for line those of the {MANY} lines")


def survive(cluster: Cluster, host: Host) -> None:
    """Kills the primary of the lanes under three requests, one on each primary."""
    victim = cluster.primary_of("{req}")
    files = {}
    for node in cluster.primaries():
        name = name_on(node)
        files[name] = host.lines(name, SOME)
        say(f"$ rq-submit {name}.txt --id {name} --limit 2: on 127.0.0.1:{node.port}")
        host.submit(files[name], "--id", name, "--limit", "2")
    show_nodes(cluster)
    with host.worker(free_id(), "shout_slowly") as log:
        first = name_on(victim)
        host.wait_for(first, SOME // 20)
        done = {name: host.done(name) for name in files}
        say(f"$ docker kill {service_of(victim.port)}: the lanes' primary, {done} done")
        say(f"  all slots are served again after {cluster.fail_over(victim.port):.1f} s")
        for name, sent in files.items():
            host.call("fairlane", "wait", name)
            say(f"  {name}: {host.check(name, sent)} results, line for line")
        more = host.lines("more", SOME // 4)
        host.submit(more, "--id", "more", "--limit", "3", "--wait")
        say(f"  more: {host.check('more', more)} results, submitted after the failover")
        tries = sum("does not answer" in line for line in lines_of(log))
    say(f"  the worker went on by itself and drained; it had said {tries} times that it waits")
    show_nodes(cluster)
    say(f"$ docker start {service_of(victim.port)}")
    cluster.engine.run("start", cluster.container(service_of(victim.port)))
    cluster.wait_until_whole()
    say("  it is back, as a replica")


def stop_and_start(cluster: Cluster, host: Host) -> None:
    """Stops and starts the cluster: its topology and its requests must be there."""
    say("$ docker compose stop; docker compose up -d")
    cluster.compose("stop")
    cluster.compose("up", "--detach")
    for line in cluster.logs("form")[-2:]:
        say(f"  {line}")
    if "formed before" not in cluster.logs("form"):
        raise Wrong("the cluster was formed a second time")
    sent = host.lines("some", MANY)
    say(f"  some: still {host.check('some', sent)} results, line for line")
    again = host.lines("again", SOME // 4)
    with host.worker(free_id(), "shout"):
        host.submit(again, "--id", "again", "--wait")
    say(f"  again: {host.check('again', again)} results")


def run_container_tests(engine: Engine, image: str) -> None:
    """Runs the tests that need an engine for one Redis in a container."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += [str(ROOT / "tests" / "test_containers.py")]
    env = {**engine.env, "FAIRLANE_REDIS_IMAGE": image}
    said = run(words, env).strip().splitlines()[-1]
    say(f"tests/backends/test_containers.py: {said}")
    if "skipped" in said:
        raise Wrong("the tests found no engine")


def name_on(node: Node) -> str:
    return next(name for n in range(10_000) if node.serves(f"{{{(name := f'lines-{n}')}}}"))


def free_id() -> str:
    return f"127.0.0.1:{server_process.free_ports(1)[0]}"


if __name__ == "__main__":
    sys.exit(main())
