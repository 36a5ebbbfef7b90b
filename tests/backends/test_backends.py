"""Tests the choice of back ends, and the table of what ran there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.embedded import ServerBinary
from tests.support import security
from tests.support.run import table
from tests.support.run.for_each import for_each
from tests.support.servers import backends, server_process
from tests.support.servers.backends import TESTS


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda text: monkeypatch.setenv(backends.VARIABLE, text)


def test_unless_others_are_named_the_usual_ones_are_chosen(named: Any):
    named("")
    assert backends.chosen() == ("single", "cluster1")
    assert backends.one() == ("single",)
    assert not backends.is_named()


def test_those_that_are_named_are_chosen_and_one_is_all_of_them(named: Any):
    named("cluster3, sentinel")
    assert backends.chosen() == backends.one() == ("cluster3", "sentinel")
    assert backends.is_named()


def test_an_unknown_back_end_is_refused(named: Any):
    named("cluster3,cluster9")
    with pytest.raises(ValueError, match="no such back end: cluster9"):
        backends.chosen()


def test_where_less_is_enough_not_everything_runs():
    assert backends.takes("cluster3", TESTS / "cli" / "commands" / "test_x.py")
    assert backends.takes("container", TESTS / "operations" / "submit" / "test_x.py")
    assert not backends.takes("container", TESTS / "cli" / "test_x.py")
    assert not backends.takes("single", TESTS / "chaos" / "test_x.py")


@for_each(
    "file, main",
    [
        ("cli/test_x.py", ["single"]),
        ("operations/lease/test_x.py", ["single"]),
        ("scripts/test_x.py", ["cluster1"]),
        ("spark/scripts/test_x.py", ["cluster1"]),
        ("scripts/creation/test_submit.py", ["single", "cluster1"]),
        ("scripts/change/test_rates.py", ["single", "cluster1"]),
        ("operations/submit/test_x.py", ["single", "cluster1"]),
        ("drivers/wire/test_x.py", ["single", "cluster1"]),
    ],
)
def test_a_file_s_subject_decides_the_kind_of_make_test(file: str, main: list[str]):
    kinds = backends.USUAL
    assert [kind for kind in kinds if not backends.is_other_kind(kind, TESTS / file)] == main


def test_no_kind_that_others_name_is_the_other_kind():
    found = {backends.is_other_kind(kind, TESTS / "cli" / "x.py") for kind in backends.OTHERS}
    assert found == {False}


def test_whatever_runs_on_both_kinds_is_there():
    assert [name for name in backends.ON_BOTH_KINDS if not (TESTS / name).exists()] == []


def test_scripts_of_a_server_with_all_keys_run_on_one_in_make_test():
    """They skip a cluster, so such a file must be among those on both kinds."""
    needing = [
        str(path.relative_to(TESTS))
        for name in backends.SCRIPTS
        for path in (TESTS / name).rglob("test_*.py")
        if re.search(r"\bone: Lane\b|no server of a cluster has all keys", path.read_text())
    ]
    assert len(needing) > 2
    assert [file for file in needing if backends.is_other_kind("single", TESTS / file)] == []


def report(kind: str | None, reason: str = "") -> Any:
    longrepr = ("test_x.py", 1, f"Skipped: {reason}") if reason else None
    return SimpleNamespace(user_properties=[(table.PROPERTY, kind)], longrepr=longrepr)


def test_the_table_has_counts_and_reasons(named: Any, monkeypatch: pytest.MonkeyPatch):
    named("cluster3,tls_acl")
    monkeypatch.setattr(security, "why_not", lambda: "there is none")
    monkeypatch.setattr(backends, "name_of", lambda kind: "Redis 7.0.15")
    stats = {
        "passed": [report("cluster3")] * 3 + [report(None)],
        "failed": [report("cluster3")],
        "error": [report("cluster3")],
        "skipped": [report("cluster3", text) for text in ("a", "a", "b", "c")],
    }
    assert table.lines(stats) == [
        "",
        "back end | version      | passed | skipped | failed | why skipped or not run",
        "---------+--------------+--------+---------+--------+-----------------------",
        "cluster3 | Redis 7.0.15 | 3      | 4       | 2      | 2 x a; 1 x b; 1 x c",
        "tls_acl  | -            | 0      | 0       | 0      | not run: there is none",
    ]


# ------------------------------------------------------------------ server programs


def program(name: str, flavour: str = "redis", major: int = 7) -> Any:
    return ServerBinary(Path(name), (major, 0, 0), flavour)


def test_the_systems_redis_is_the_second_program_of_two(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a system without the extra would run everything on it twice."""
    monkeypatch.setattr(server_process, "find_system_redis", lambda: program("redis"))
    monkeypatch.setattr(server_process, "find_server", lambda: program("redis"))
    assert backends.why_not("system_redis") == server_process.ONLY_ONE
    monkeypatch.setattr(server_process, "find_server", lambda: program("valkey", "valkey", 9))
    assert backends.why_not("system_redis") is None
    assert server_process.program_of("cluster1").flavour == "redis"
    monkeypatch.setattr(server_process, "find_system_redis", lambda: None)
    assert server_process.program_of("cluster1").flavour == "valkey"
    assert backends.why_not("system_redis") == server_process.NO_SYSTEM_REDIS


def test_without_a_server_for_tls_its_tests_give_the_reason(monkeypatch: pytest.MonkeyPatch):
    def none() -> Any:
        raise LookupError(server_process.NO_TLS)

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(server_process, "find_secure", none)
    assert backends.why_not("tls_acl") == server_process.NO_TLS
