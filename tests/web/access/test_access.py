"""Tests bearer tokens: how they are stored, what each scope allows, and when they are refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.commands.serve import NEEDS, command
from fairlane.errors import AccessTokenNotFound, InvalidArgument
from fairlane.web.access.tokens import SCOPES, TokenFile, all_scopes
from fairlane.web.app import ENDPOINTS
from tests.cli.program import END_S
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.program import Program

CALLS = [
    (method, re.sub(r"\{\w+\}", "r1", path), end.scopes)
    for end in ENDPOINTS
    for method, path in ((end.method, path) for path in (end.path, *end.also))
]
OPTIONS = {
    "host": "127.0.0.1",
    "port": 0,
    "tokens": None,
    "visible": "30s",
    "rate": None,
    "burst": None,
    "webhooks_to_private": False,
    "queue": "req",
    "redis": None,
}
OPEN = {"/livez", "/readyz", "/docs", "/docs.css", "/openapi.json"}
OPEN |= {"/", "/dashboard/{file:path}", "/dashboard/session"}

LONG = {"/v1/completions", "/v1/live", "/v1/doctor"}  # streams, and what takes a second


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "folder" / "tokens.json")


def line_to(serving: Serving) -> HTTPConnection:
    """Returns a connection that is kept: a curl for each of some hundred calls takes seconds."""
    return HTTPConnection(serving.url.removeprefix("http://"), timeout=END_S)


def test_each_scope_allows_its_calls_and_no_others(program: Program):
    tokens = {scope: program("token", "create", scope, "--scope", scope).id for scope in SCOPES}
    with Serving(program) as serving, contextlib.closing(line_to(serving)) as line:
        for method, path, scopes in CALLS:
            for scope, token in tokens.items():
                allowed = not scopes or bool({*scopes} & {*all_scopes([scope])})
                if path in LONG and allowed:
                    continue
                line.request(method, path, headers={"Authorization": f"Bearer {token}"})
                with line.getresponse() as response:
                    response.read()
                status = response.status
                assert (status == 403) is not allowed, (method, path, scope)
                assert status not in {401, 500}
        for _, path, scopes in CALLS:
            assert bool(scopes) is (path not in OPEN)


def test_a_token_that_is_wrong_expired_or_revoked_is_401(program: Program):
    made = program("token", "create", "ci", "--scope", "admin", "--json")
    token = json.loads(made.out)["token"]
    with Serving(program) as serving:

        def status(text: str) -> int:
            return serving.curl("-H", f"Authorization: {text}", "/v1/requests").status

        assert status(f"Bearer {token}") == 200
        assert status(f"bearer {token}") == 200
        for text in ("", token, "Bearer", f"Bearer {token[:-1]}", f"Bearer {token}x", "Bearer ä"):
            assert status(text) == 401, text
        unauthorized = serving.curl("/v1/requests")
        assert unauthorized.json["detail"] == "You are unauthorized to perform this action"
        assert unauthorized.headers["www-authenticate"] == "bearer"
        (listed,) = program("token", "list", "--json").out.splitlines()
        assert program("token", "revoke", json.loads(listed)["id"]).out == b"revoked\n"
        assert status(f"Bearer {token}") == 401  # also without any token in the file


def test_a_damaged_file_lets_no_call_pass(program: Program):
    token = program("token", "create", "ci", "--scope", "admin").id
    with Serving(program) as serving:
        (program.folder / "home" / "tokens.json").write_text("{")
        answer = serving.curl("-H", f"Authorization: Bearer {token}", "/v1/requests")
        assert (answer.status, serving.curl("/livez").status) == (503, 200)
        assert "tokens.json" not in answer.body.decode()
        (program.folder / "home" / "tokens.json").unlink()
        assert serving.curl("-H", f"Authorization: Bearer {token}", "/v1/requests").status == 401
        (program.folder / "home" / "tokens.json").write_text("{")
    program("token", "list").refused(2, "is no file of tokens")


def test_the_file_keeps_hashes_and_is_private(program: Program):
    token = program("token", "create", "ci", "--scope", "submit", "--scope", "consume").id
    path = program.folder / "home" / "tokens.json"
    assert token not in path.read_text()
    assert token.rpartition("_")[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    head, line = program("token", "list").out.decode().splitlines()
    assert head.split() == ["ID", "NAME", "SCOPES", "CREATED", "EXPIRES"]
    assert line.split()[1:3] == ["ci", "submit,consume"]


def test_bad_words_are_refused_in_one_sentence(program: Program):
    program("token", "create", "a b", "--scope", "admin").refused(2, "token's name")
    program("token", "create", "ci").refused(2, "--scope")
    program("token", "create", "ci", "--scope", "root").refused(2, "root")
    program("token", "create", "ci", "--scope", "admin", "--expires", "x").refused(2, "--expires")
    program("token", "revoke", "12345678").refused(3, "there is no token 12345678")
    program("serve", "--host", "0.0.0.0").refused(2, "there are no tokens")
    program("serve", "--tokens", "nothing.json").refused(2, "does not exist")
    program.env["FAIRLANE_TOKENS"] = "nothing.json"
    program("serve").refused(2, "nothing.json does not exist")
    del program.env["FAIRLANE_TOKENS"]
    program("serve", "--visible", "0s").refused(2, "--visible")
    program("serve", "--host", "no.such.host.example").refused(2, "no.such.host.example")
    assert not (program.folder / "home" / "tokens.json").exists()


def test_an_expired_token_is_not_found(file: TokenFile):
    made, text = file.create("ci", ["submit"], 3600)
    assert file.find(text) == made
    raw = json.loads(file.path.read_text())
    raw["tokens"][0]["expires"] = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)).isoformat()
    file.path.write_text(json.dumps(raw))
    assert file.find(text) is None


def test_the_hashes_are_compared_in_constant_time(file: TokenFile, monkeypatch: pytest.MonkeyPatch):
    """It compares every hash, also if an earlier one is not equal."""
    texts = [file.create(f"t{i}", ["submit"])[1] for i in range(3)]
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("fairlane.web.access.tokens.hmac.compare_digest", compare)
    found = file.find(texts[2])
    assert found is not None
    assert found.name == "t2"
    assert len(compared) == 3
    assert texts[2] not in {text for pair in compared for text in pair}


def test_two_files_objects_see_each_others_changes(file: TokenFile):
    other = TokenFile(file.path)
    made, text = other.create("ci", ["consume"])
    assert file.find(text) == made
    file.revoke(made.id)
    assert other.find(text) is None
    with pytest.raises(AccessTokenNotFound):
        other.revoke(made.id)
    with pytest.raises(InvalidArgument):
        other.create("ci", [])


@pytest.mark.parametrize("missing", NEEDS)
def test_without_the_extra_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str):
    def spec_of(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr("fairlane.cli.commands.serve.find_spec", spec_of)
    with pytest.raises(InvalidArgument, match=r"needs the extra web: pip install '\.\[web\]'"):
        command.callback(**OPTIONS)  # type: ignore[misc]
