"""Tests writes while Redis is unreachable, and on a cluster that speculates."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.processes import skip_without_java

pytest.importorskip("pyspark")

import pyspark

from tests.spark.sink.sinks import COUNT, areas, bodies_in, rows, write
from tests.spark.speculating import PARTITIONS, STALL_S
from tests.support.scripts.requests import stored
from tests.support.servers import server_process
from tests.support.servers.restart import AOF, killed_and_started_again
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.heavy, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[3]
END_S = 180.0


@pytest.mark.parametrize("crash", ["task:kill:{pid}", "kill:4:{pid}", "kill:9:{pid}"])
def test_an_outage_of_redis_fails_the_write_and_the_next_run_completes_it(frame: Any, crash: str):
    """It fails in the middle of the staging, before the pin, and after it."""
    options = (*AOF, "no")
    with server_process.run_server("single", *options) as server:
        how = crash.format(pid=server.pid)
        given = {"request": "r1", "txn": "t1", "patience": "100ms"}
        with pytest.raises(Exception, match=f"{server.port}"):
            write(frame, server.url, "crashing", crash=how, **given)
        with killed_and_started_again(server, options) as again, again.client() as client:
            wait_until(lambda: not client.info("persistence")["loading"], END_S)
            is_whole = len(bodies_in(client, "r1")) == COUNT
            is_open = stored(client, "r1").get("open") != "0"
            assert is_open, "it is not sealed before all is there"
            assert not is_whole
            write(frame, again.url, **given)
            assert bodies_in(client, "r1") == rows(COUNT)
            assert stored(client, "r1")["open"] == "0"


# ------------------------------------------------------------------ speculation


@contextlib.contextmanager
def spark_process(name: str, log: Path, *words: str) -> Iterator[None]:
    """Runs a daemon of Spark's own standalone cluster."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Runs a master and a worker on each of two addresses: on one there is no speculation."""
    (port,) = server_process.free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    log = folder / "master.log"
    with contextlib.ExitStack() as later:
        words = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        later.enter_context(spark_process("master.Master", log, *words))
        wait_until(lambda: "Starting Spark master" in log.read_text(), END_S, every=0.1)
        for host in ("127.0.0.1", "127.0.0.2"):
            work = folder / host
            work.mkdir()
            own = ("--host", host, "--webui-port", "0", "--cores", "2", "--memory", "1g")
            own_folder = ("--work-dir", str(work), master)
            later.enter_context(spark_process("worker.Worker", work / "log", *own, *own_folder))
        wait_until(
            lambda: len(re.findall("Registering worker", log.read_text())) == 2, END_S, every=0.1
        )
        yield master


@pytest.mark.timeout(400)
def test_an_attempt_that_was_overtaken_brings_nothing_in(tmp_path: Path):
    """Both attempts at a partition have written; the rows of one are added."""
    skip_without_java()
    with server_process.run_server() as server, spark_cluster(tmp_path) as master:
        words = ["-m", "tests.spark.speculating", master, server.url, str(COUNT)]
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        found = subprocess.run(
            [sys.executable, *words], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT,
            capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr[-3000:]
        with server.client() as client:
            assert bodies_in(client, "r1") == rows(COUNT)
            losers = [area for area in areas(client) if b":%d:" % (PARTITIONS - 1) in area]
            assert losers, f"nothing was speculated in {STALL_S} s"
            assert all(client.pttl(area) > 0 for area in losers)
