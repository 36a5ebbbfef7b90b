"""The incidents of docs/how-to/watch/at-night.md: each is set up for real, and has an end."""

from __future__ import annotations

import itertools
import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tests.incidents.stage import QUEUE, Stage
from tests.support.servers.server_process import free_ports, is_open
from tests.support.wait import PATIENCE_S, wait_until
from tests.web.receiver import receiving

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[Stage], None]

ON_DISK = ("--appendonly", "yes")
WITHOUT_AOF = ("--save", "3600 1")
GOOD = """
def work(body: bytes) -> bytes:
    return body.upper()
"""
ORDER = "printf 'one\\ntwo\\nthree\\n' | rq-submit - --queue shop --id order-7"


@dataclass(frozen=True)
class Incident:
    """What happens, under the heading that the page has for it.

    `cause` are patterns of what the first block of the section prints. `hands[n]` does before
    block n what people do elsewhere: they correct their code, or a service is back. `closed` checks
    the result that the customer asks for. `is_seen`: the doctor links to the section.
    """

    heading: str
    set_up: Act
    cause: tuple[str, ...]
    closed: Act
    hands: dict[int, Act] = field(default_factory=dict)
    options: tuple[str, ...] = ON_DISK
    is_seen: bool = True


def ends_with(request_id: str, *results: str) -> Act:
    """Returns the check that a request is done, with these results in their order."""

    def closed(stage: Stage) -> None:
        request = stage.queue.request(request_id)
        assert request.wait(PATIENCE_S) == "done"
        assert [one.body for one in request.results()] == [text.encode() for text in results]

    return closed


THE_ORDER = ends_with("order-7", "ONE", "TWO", "THREE")


def with_code(text: str) -> Act:
    """Returns the deployment of this shop.py: the worker ends, and the page starts another one."""

    def deploy(stage: Stage) -> None:
        stage.file("shop.py", text)
        worker = stage.workers.pop()
        worker.send_signal(signal.SIGTERM)
        worker.wait(PATIENCE_S)

    return deploy


# ------------------------------------------------------------------ calls and code


HANGS = """
import os
import threading

def work(body: bytes) -> bytes:
    if body == b"two":
        ask_the_bank()
    return body.upper()

def ask_the_bank():
    open("asked", "w").close()
    if not os.path.exists("bank-is-up"):
        threading.Event().wait()
"""


def call_hangs(stage: Stage) -> None:
    stage.file("shop.py", HANGS)
    stage.worker()
    stage.run(ORDER)
    wait_until((stage.folder / "asked").exists, why="the bank is asked")


APP = """
from fairlane import App

app = App("shop")

@app.task
def send_mail(to: str) -> str:
    {line}

@app.task
def resize(path: str) -> str:
    return path
"""
BEFORE = APP.format(line='return f"sent to {to}"')
# The calls of mails-2 are tried again for minutes.
CALLS = """
from shop import resize, send_mail

send_mail.with_options(id="mails-1", attempts=1).map(["ann", "bob"])
send_mail.with_options(id="mails-2", attempts=100, backoff=("9s", "9s")).map(["eve", "joe"])
resize.with_options(id="pictures").map(["a.png"])
"""


def bad_deployment(stage: Stage) -> None:
    stage.file("shop.py", APP.format(line='return f"sent to {to.address}"'))
    stage.file("calls.py", CALLS)
    stage.worker("--app shop:app")
    stage.run("PYTHONPATH=. python calls.py")
    stage.queue.request("mails-1").wait(PATIENCE_S)
    wait_until(lambda: stage.queue.request("mails-2").progress().failures, why="mails-2 fails")


def deployment_is_over(stage: Stage) -> None:
    ends_with("mails-1", '"sent to ann"', '"sent to bob"')(stage)
    ends_with("mails-2", '"sent to eve"', '"sent to joe"')(stage)


KILLS = """
import os
import signal

def work(body: bytes) -> bytes:
    if body == b"two":
        os.kill(os.getpid(), signal.SIGKILL)  # memory ran out
    return body.upper()
"""


def poison_body(stage: Stage) -> None:
    stage.file("shop.py", KILLS)
    stage.worker()
    stage.run(f"{ORDER} --attempts 2 --backoff 100ms")
    stage.queue.request("order-7").wait(PATIENCE_S)


# ------------------------------------------------------------------ Redis


LARGE = """
def work(body: bytes) -> bytes:
    return body * 4000 if body == b"large" else body.upper()
"""


def redis_full(stage: Stage) -> None:
    stage.file("shop.py", LARGE)
    stage.file("order-7.txt", "one\ntwo\nthree\n")
    stage.worker()
    for number in itertools.count():
        with stage.queue.open(id=f"report-{number}") as request:
            request.add_many([b"large"] * 50)
        if request.wait(PATIENCE_S) != "done" or _is_refused(stage):
            return


def _is_refused(stage: Stage) -> bool:
    """Submits the order when Redis has come to its limit; returns True if it was refused."""
    with stage.server.client() as client:
        found = client.info("memory")
        if found["used_memory"] < found["maxmemory"]:
            return False
    shown = stage.run("rq-submit order-7.txt --queue shop --id order-7", must_succeed=False)
    return "full" in shown.text


def redis_lost_data(stage: Stage) -> None:
    stage.file("shop.py", GOOD)
    stage.file("order-7.txt", "one\ntwo\nthree\n")
    stage.run("rq-submit order-7.txt --queue shop --id order-7")
    stage.kill_redis()
    stage.worker()


# ------------------------------------------------------------------ workers


def no_worker(stage: Stage) -> None:
    stage.file("shop.py", GOOD)
    stage.run(ORDER)


SLOW = """
import threading

def work(body: bytes) -> bytes:
    threading.Event().wait(0.05)
    return body.upper()
"""
MORE = """
import threading

from fairlane import Queue

with Queue.from_url(name="shop") as queue:
    for n in range(100_000):
        queue.submit_request(["x"], id=f"visit-{n}")
        threading.Event().wait(0.02)
"""


def queue_grows(stage: Stage) -> None:
    stage.file("shop.py", SLOW)
    stage.file("more.py", MORE)
    stage.worker()
    stage.start("python more.py")
    wait_until(partial(_has_piled_up, stage), every=0.3, why="much waits, and it grows")
    stage.run(f"{ORDER} --priority 50")


def _has_piled_up(stage: Stage) -> bool:
    backlog = stage.queue.demand().backlog
    return (backlog.grows_per_s or 0) > 1 and backlog.waiting > 8 * (backlog.came_per_s or 0)


HOLDS = """
import os
import threading

def work(body: bytes) -> bytes:
    if body == b"two" and not os.path.exists("has-memory"):
        open("holds", "w").close()
        threading.Event().wait()
    return body.upper()
"""
# A worker that is killed as soon as it works on the second sub-request, and started again.
FLAPS = """
import os
import subprocess
import threading

while True:
    worker = subprocess.Popen(["rq-worker", "--queue", "shop", "--handler", "shop:work"])
    while not os.path.exists("holds"):
        threading.Event().wait(0.02)
        if os.path.exists("stop"):
            break
    worker.kill()
    worker.wait()
    if os.path.exists("stop"):
        break
    os.remove("holds")
"""


def worker_flaps(stage: Stage) -> None:
    stage.file("shop.py", HOLDS)
    stage.file("flaps.py", FLAPS)
    stage.run(f"{ORDER} --attempts 3 --backoff 100ms")
    stage.workers.append(stage.start("python flaps.py"))
    stage.queue.request("order-7").wait(PATIENCE_S)


def stop_it_there(stage: Stage) -> None:
    stage.file("has-memory", "")
    stage.file("stop", "")
    stage.workers.pop().wait(PATIENCE_S)


# ------------------------------------------------------------------ who waits for whom


def customer_floods(stage: Stage) -> None:
    stage.file("shop.py", SLOW)
    stage.worker()
    stage.run("seq 20000 | rq-submit - --queue shop --id acme-1 --tenant acme --priority 0")
    stage.run(f"{ORDER} --tenant bakery")


def key_full(stage: Stage) -> None:
    stage.file("shop.py", HANGS)
    stage.worker(more="--processes 2")
    stage.run("printf 'two\\n' | rq-submit - --queue shop --id export-1 --key bank=1")
    wait_until((stage.folder / "asked").exists, why="it has the key")
    stage.run("printf 'one\\nfour\\n' | rq-submit - --queue shop --id order-7 --key bank=1")


FAILS = """
def work(body: bytes) -> bytes:
    if body == b"two":
        raise ValueError("no such account")
    return body.upper()
"""


def order_stopped(stage: Stage) -> None:
    stage.file("shop.py", FAILS)
    stage.worker()
    more = "--order-key account-9 --order-on-dead stop --attempts 1"
    for name, body in (("order-6", "two"), ("order-7", "one"), ("order-8", "three")):
        stage.run(f"printf '{body}\\n' | rq-submit - --queue shop --id {name} {more}")
    stage.queue.request("order-6").wait(PATIENCE_S)


def order_goes_on(stage: Stage) -> None:
    ended = []
    for name, result in (("order-6", "TWO"), ("order-7", "ONE"), ("order-8", "THREE")):
        ends_with(name, result)(stage)
        ended.append(stage.queue.request(name).progress().ended_ms)
    assert ended == sorted(ended, key=lambda at_ms: at_ms or 0)


# ------------------------------------------------------------------ schedules and webhooks


def schedule_missed(stage: Stage) -> None:
    stage.file("shop.py", GOOD)
    stage.run("fairlane schedule add report '* * * * * *' --body one --queue shop")
    wait_until(partial(_is_overdue, stage), every=0.5, why="no worker has submitted its ticks")


def _is_overdue(stage: Stage) -> bool:
    return stage.queue.schedules.list()[0].state == "overdue"


def report_has_come(stage: Stage) -> None:
    found = stage.queue.list_requests(id_prefix="shop:report:", states=["done"]).requests
    assert found, "a tick has a request that is done"


def webhook_fails(stage: Stage) -> None:
    stage.file("shop.py", GOOD)
    port, receiver = free_ports(2)
    stage.file("port", str(receiver))
    stage.start(f"fairlane serve --queue {QUEUE} --port {port} --webhooks-to-private")
    wait_until(partial(is_open, port), why="it serves")
    stage.run(f"fairlane webhook add crm http://127.0.0.1:{receiver}/ended --queue {QUEUE}")
    stage.worker()
    stage.run(ORDER)
    stage.queue.request("order-7").wait(PATIENCE_S)
    look = f"fairlane webhook list --queue {QUEUE}"
    wait_until(lambda: "failing" in stage.run(look).text, every=0.5, why="it fails")


def receiver_is_up(stage: Stage) -> None:
    port = int((stage.folder / "port").read_text())
    receiver = stage.enter_context(receiving(port))
    stage.received = receiver.received


def receiver_has_it(stage: Stage) -> None:
    assert [one.id for one in stage.received] == ["order-7"]


INCIDENTS = (
    Incident(
        "A call hangs",
        call_hangs,
        (r"(?m)^order-7 .* 1/3", r"holds permit 1", r'shop\.py", line \d+ in ask_the_bank'),
        THE_ORDER,
        {1: lambda stage: stage.file("bank-is-up", "")},
        is_seen=False,
    ),
    Incident(
        "A bad deployment",
        bad_deployment,
        (
            r"2 dead: AttributeError: 'str' object has no attribute 'address' \(shop\.py:\d+ send_",
            r"2 wait \(to be tried again\): AttributeError",
            r"send_mail +0 +\d+",
        ),
        deployment_is_over,
        {2: with_code(BEFORE)},
    ),
    Incident(
        "A body that kills its worker",
        poison_body,
        (r"the process of the handler ended by signal 9 \(SIGKILL\)", r"(?m)<- two$"),
        THE_ORDER,
        {1: with_code(GOOD)},
    ),
    Incident(
        "A worker that flaps",
        worker_flaps,
        (r"workers of host \S+ died \d times", r"the worker died or let its lease expire"),
        THE_ORDER,
        {1: stop_it_there},
    ),
    Incident("No worker", no_worker, (r"no worker beats", r"no worker takes from"), THE_ORDER),
    Incident(
        "Redis is full",
        redis_full,
        (r"bad +memory +\d+ MiB used of \d+ MiB",),
        THE_ORDER,
        options=("--maxmemory", "12mb"),
    ),
    Incident(
        "Redis lost its data",
        redis_lost_data,
        (r"there is no request order-7", r"Redis started .* without an append-only file"),
        THE_ORDER,
        options=WITHOUT_AOF,
    ),
    Incident("A queue that grows", queue_grows, (r"grows by \d", r"more leases could"), THE_ORDER),
    Incident(
        "A customer who floods",
        customer_floods,
        (r"tenant acme has [\d,]+ of", r"tokens? of 1 request (?:are|is) ahead of it"),
        THE_ORDER,
    ),
    Incident(
        "A limit by key that is full",
        key_full,
        (r"waits for key bank: 1 of 1 is held, by request export-1", r"in ask_the_bank"),
        ends_with("order-7", "ONE", "FOUR"),
    ),
    Incident(
        "An order that is stopped",
        order_stopped,
        (r"which request order-6 has stopped", r"ValueError: no such account"),
        order_goes_on,
        {1: with_code(GOOD)},
    ),
    Incident(
        "A schedule that missed its ticks",
        schedule_missed,
        (r"report +overdue", r"bad +schedules +schedule report"),
        report_has_come,
    ),
    Incident(
        "A webhook that is not delivered",
        webhook_fails,
        (r"crm +failing", r"warn +webhooks +webhook crm +\d+ attempts? failed"),
        receiver_has_it,
        {1: receiver_is_up},
    ),
)
