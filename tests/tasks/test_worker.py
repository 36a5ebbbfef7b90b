"""Tests `rq-worker --app`: several apps, apps that cannot be loaded, and missing tasks."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

import pytest

from fairlane import App, TaskError
from fairlane.tasks.serve import run_workers, workers_of
from tests.cli.program import finish
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

APPS = b"""
from fairlane import App, Context
images, more, mail = App("images"), App("images"), App("mail")
empty, other, text = App("empty"), App("images"), "text"

@images.task
def resize(n: int) -> int:
    return n * 2

@more.task
async def crop(n: int) -> int:
    return n * 3

@images.task
def walk_slowly(ctx: Context) -> None:
    import pathlib, time
    ctx.progress(30, 100)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

@mail.task
def send(n: int) -> int:
    return n * 5

@images.on_startup
def connect():
    print("connected", flush=True)

@images.on_shutdown
async def close():
    print("closed", flush=True)

@other.task(name="resize")
def resize_again(n: int) -> int:
    return n
"""


@pytest.fixture
def apps(program: Program, redis_url: str) -> dict[str, App]:
    """The same names, as another program submits to them."""
    program.file(APPS, "mine.py")
    found = {"images": App("images", redis_url), "mail": App("mail", redis_url)}
    for name in ("resize", "crop", "walk"):
        found["images"].task(name=name)(lambda n: n)
    found["mail"].task(name="send")(lambda n: n)
    return found


@pytest.mark.rest
def test_two_queues_are_served_by_one_program(program: Program, apps: dict[str, App]):
    images, mail = apps["images"].tasks, apps["mail"].tasks
    batches = [images["resize"].map([1, 2]), images["crop"].map([1]), mail["send"].map([1, 2])]
    named = ["--app", "mine:images", "--app", "mine:mail", "--app", "mine:more"]
    ended = program("worker", *named, "--app", "mine:images", "--until-idle")
    assert ended.code == 0, ended.err
    assert [list(batch) for batch in batches] == [[2, 4], [3], [5, 10]]
    assert ended.out.splitlines() == [b"connected", b"closed"]
    assert ended.err.count("takes from queue") == 2


@pytest.mark.rest
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_the_log_of_a_failure_names_the_task(
    encoding: Literal["json", "msgpack"], program: Program, redis_url: str
):
    strict = APPS.replace(
        b'App("images"), App("images"),', b'App("images", unknown_tasks="dead"), 0,'
    )
    strict = strict.replace(b"@more.task", b"@images.task")
    program.file(strict, "mine.py")
    app = App("images", redis_url, encoding=encoding)
    request = app.task(name="resize")(lambda n: n).submit("not a number").request
    ended = program("worker", "--app", "mine:images", "--until-idle", "--log-format", "json")
    lines = map(json.loads, ended.err.splitlines())
    (line,) = [line for line in lines if line.get("request") == request.id]
    assert line["task"] == "resize"
    said = f"task resize: sub-request 0 of request {request.id} was rejected by the handler"
    assert line["message"].startswith(said)
    app.close()


@pytest.mark.rest
def test_a_signal_drains_the_workers_of_all_queues(program: Program, apps: dict[str, App]):
    started = program.start("worker", "--app", "mine:images", "--app", "mine:mail")
    wait_registered(apps)
    started.send_signal(signal.SIGTERM)
    ended = finish(started)
    assert ended.code == 0, ended.err
    assert ended.err.count("has stopped: 0 sub-requests done") == 2


@pytest.mark.rest
def test_a_worker_that_fails_ends_those_of_the_other_queues(program: Program, apps: dict[str, App]):
    with two_ports() as (port, taken):
        taken.listen()
        words = ["--app", "mine:mail", "--app", "mine:images", "--id", f"127.0.0.1:{port}"]
        ended = program("worker", *words)
    assert ended.code == 2, ended.err
    assert "the worker of queue mail has ended: " in ended.err


def wait_registered(apps: dict[str, App]) -> None:
    def are_there() -> bool:
        return all(app.queue.status().workers for app in apps.values())

    wait_until(are_there, why="the workers register")


@contextlib.contextmanager
def two_ports() -> Iterator[tuple[int, socket.socket]]:
    """Yields a free port, and a socket that has taken the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                first.close()
                yield port, second
                return


@pytest.mark.rest
def test_the_workers_drain_if_the_program_is_killed(program: Program, apps: dict[str, App]):
    started = program.start("worker", "--app", "mine:images", "--app", "mine:mail")
    wait_registered(apps)
    started.kill()
    ended = finish(started)
    assert ended.err.count("has stopped: 0 sub-requests done") == 2


def len_of(text: str) -> int:
    return len(text)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("source", "named", "reason"),
    [
        (b"x = 1\n1 / 0\n", "mine:app", "cannot be imported: ZeroDivisionError: division by zero"),
        (b"def f(:\n", "mine:app", "mine.py, line 1"),
        (b"import nothing_at_all\n", "mine:app", "No module named 'nothing_at_all'"),
        (APPS, "mine:imagse", "mine has no imagse; did you mean images?"),
        (APPS, "mine:text", "app 'mine:text' is a str: a fairlane.App is expected"),
        (APPS, "mine:send", "app 'mine:send' is a task: name its app, not the task"),
        (APPS, "mine", "app 'mine' is not valid: write module:app"),
        (APPS, "mine:empty", "app empty has no task: register one with @app.task"),
        (b"from fairlane import App\napp = App('a')\n@app.task\ndef f(x: 'Y'): ...\n", "mine:app",
         "task f: an annotation cannot be resolved: name 'Y' is not defined"),
        (b"from fairlane import App\napp = App('a')\n@app.task\n@app.task\ndef f(): ...\n",
         "mine:app", "is a Task: write a function"),
    ],
    ids=["raises", "syntax", "import", "typo", "text", "task", "name", "empty", "type", "twice"],
)  # fmt: skip
def test_an_app_that_cannot_be_loaded_ends_the_worker(
    program: Program, source: bytes, named: str, reason: str
):
    program.file(source, "mine.py")
    ended = program("worker", "--app", named, "--until-idle")
    ended.refused(2, reason)


def test_the_line_that_does_not_import_is_named(program: Program):
    program.file(b"x = 1\n1 / 0\n", "mine.py")
    program("worker", "--app", "mine:app").refused(2, "mine.py:2")


def test_options_that_contradict_an_app_are_refused(program: Program):
    program.file(APPS, "mine.py")
    program("worker", "--app", "mine:images", "--app", "mine:other").refused(
        2, "two apps of queue images have a task resize (mine): give one of them another name="
    )
    program("worker", "--app", "mine:images", "--handler", "mine:f").refused(
        2, "exclude each other"
    )
    program("worker", "--app", "mine:images", "--queue", "req").refused(2, "an app names its own")


@pytest.mark.rest
def test_status_and_doctor_name_a_task_that_no_worker_has(program: Program, apps: dict[str, App]):
    one = apps["images"].tasks["walk"].submit(1)
    started = program.start("worker", "--app", "mine:images")
    request = one.request
    wait_until(lambda: request.progress().given_back, why="the worker gives it back")
    started.send_signal(signal.SIGTERM)
    ended = finish(started)
    assert "queue images: no worker has had the task walk" in ended.err
    assert "this one has resize" in ended.err
    shown = program("status", one.id).out.decode()
    assert "waits     no worker has had the task walk: it waits for a worker that has it" in shown
    assert "1 waits; the next is looked at in " in shown
    assert "failed" not in shown
    found = json.loads(program("status", one.id, "--json").out)
    assert (found["failures"], found["last_failure"]) == (0, None)
    assert found["given_back"]["error"].startswith("no worker has had the task walk")
    said = program("doctor", "--queue", "images").out.decode()
    assert "gave back 1 sub-request" in said
    assert "no worker has had the task walk: it waits for a worker that has it" in said
    one.cancel()


@pytest.mark.rest
def test_status_shows_how_far_a_call_is(program: Program, apps: dict[str, App]):
    one = apps["images"].task(name="walk_slowly")(nothing).submit()
    started = program.start("worker", "--app", "mine:images")
    wait_until(lambda: b"30 of 100" in program("status", one.id).out, why="a beat has it")
    shown = program("status", one.id).out.decode()
    assert "1 sub-request not settled; sub-request 0 is at 30 of 100" in shown
    (holder,) = json.loads(program("status", one.id, "--json").out)["holders"]
    (call,) = holder["calls"]
    assert (call["id"], call["index"], call["done"], call["total"]) == (one.id, 0, 30, 100)
    program.file(b"", "go")
    assert one.result(timeout=PATIENCE_S) is None
    started.send_signal(signal.SIGTERM)
    assert finish(started).code == 0


def nothing() -> None: ...


def test_an_unknown_task_is_dead_by_choice(redis_url: str):
    app = App("images", redis_url)
    walk = app.task(name="walk")(len_of)
    one = walk.submit("a")
    strict = App("images", redis_url, unknown_tasks="dead")
    strict.task(len_of)
    assert run_workers(workers_of([strict]), until_idle=True) == 0
    with pytest.raises(TaskError, match="no worker has had the task walk: start a worker") as dead:
        one.result()
    assert dead.value.attempts == 1
    app.close()


@pytest.mark.parametrize("name", ["queue", "types"])
def test_a_file_that_a_module_of_python_hides_is_named(program: Program, name: str):
    program.file(APPS, f"{name}.py")
    ended = program("worker", "--app", f"{name}:images", "--until-idle")
    ended.refused(2, f"your file {name}.py is hidden by another module {name}", "rename your file")


def test_a_file_with_the_name_of_a_library_is_not_imported_in_its_place(program: Program):
    """`-P`: as the command rq-worker, whose path begins without the current folder."""
    program.file(APPS, "mine.py")
    program.file(b"", "msgspec.py")
    words = [sys.executable, "-P", "-m", "fairlane", "worker", "--app", "mine:more", "--until-idle"]
    ended = subprocess.run(
        words, cwd=program.folder, env=program.env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_an_app_that_is_registered_wrongly_is_placed_in_the_users_file(program: Program):
    program.file(b"from fairlane import App\napp = App('a')\napp.task(len)\n", "mine.py")
    ended = program("worker", "--app", "mine:app", "--until-idle")
    ended.refused(2, "mine.py:3)")


CRASHING = b"""
import ctypes, resource
from fairlane import App
app = App("images")

def deep():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)

@app.task(attempts=1)
def crash(n: int) -> int:
    deep()
    return n

@app.task(attempts=1)
async def acrash(n: int) -> int:
    deep()
    return n
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crash", "acrash"])
def test_a_crash_of_a_task_is_placed_in_the_users_file(name: str, program: Program, redis_url: str):
    program.file(CRASHING, "mine.py")
    app = App("images", redis_url)
    task = app.task(name=name, attempts=1)(nothing_of)
    one = task.submit(1)
    assert program("worker", "--app", "mine:app", "--until-idle").code == 0
    with pytest.raises(TaskError, match=r"signal 11 \(SIGSEGV\), at mine.py:8 deep"):
        one.result()
    app.close()


def nothing_of(n: int) -> int:
    return n
