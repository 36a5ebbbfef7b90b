"""Tests kill -9 of Redis by setting: no more is lost than docs/concepts/durability.md states."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

import pytest

from fairlane.errors import FairlaneError, RequestNotFound
from fairlane.queue import Queue
from tests.support.processes.workers import broken
from tests.support.scripts.requests import numbered, work_off
from tests.support.servers import server_process
from tests.support.servers.restart import AOF, UP_S, killed_and_started_again
from tests.support.wait import wait_until


def is_written(server: server_process.Server) -> bool:
    """Returns True if the log has left Redis's own memory; the disk is the kernel's part."""
    with contextlib.closing(server.client()) as client:
        found = client.info("persistence")
        return bool(found["aof_buffer_length"] == 0 and found["aof_pending_bio_fsync"] == 0)


@pytest.mark.rest
@pytest.mark.parametrize("policy", ["always", "no"])
@pytest.mark.slow
def test_with_an_append_only_file_nothing_acknowledged_is_lost(policy: str):
    """Redis is killed in the middle of submissions: the kernel has a command before its reply."""
    submitted: list[str] = []

    def submit(queue: Queue) -> None:
        with contextlib.suppress(FairlaneError):
            for i in range(100_000):
                queue.submit_request(numbered(20), id=f"r{i}")
                submitted.append(f"r{i}")

    options = (*AOF, policy)
    with (
        server_process.run_server("single", *options) as server,
        Queue.from_url(server.url, patience_s=0) as queue,
    ):
        producer = threading.Thread(target=submit, args=(queue,))
        producer.start()
        wait_until(lambda: len(submitted) > 30, UP_S, why="30 requests are submitted")
        with killed_and_started_again(server, options) as again:
            producer.join(UP_S)
            check_all_there(again, list(submitted))


@pytest.mark.rest
def test_with_everysec_what_the_kernel_has_is_not_lost():
    """A command may stay in Redis's memory only while an fsync is under way: see the docs."""
    options = (*AOF, "everysec")
    with server_process.run_server("single", *options) as server:
        with Queue.from_url(server.url) as queue:
            submitted = [queue.submit_request(numbered(20), id=f"r{i}").id for i in range(30)]
        wait_until(partial(is_written, server), UP_S, why="the log is written")
        with killed_and_started_again(server, options) as again:
            check_all_there(again, submitted)


def check_all_there(server: server_process.Server, submitted: list[str]) -> None:
    """Checks that every request is whole, and works it off."""
    with Queue.from_url(server.url) as queue:
        for name in submitted:
            assert queue.request(name).progress().total == 20
            assert broken(queue, name) == []
        work_off(queue.driver)
        assert all(queue.request(name).state() == "done" for name in submitted)


def test_without_an_append_only_file_everything_since_the_snapshot_is_lost():
    with server_process.run_server("single") as server:
        with Queue.from_url(server.url) as queue:
            queue.submit_request(numbered(20), id="saved")
            with contextlib.closing(server.client()) as client:
                client.save()
            queue.submit_request(numbered(20), id="later")
        with killed_and_started_again(server, ()) as again, Queue.from_url(again.url) as queue:
            with pytest.raises(RequestNotFound):
                queue.request("later").state()
            assert broken(queue, "saved") == []
            assert sorted(work_off(queue.driver)) == sorted(numbered(20))
