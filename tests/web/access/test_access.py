"""Tests bearer tokens: how they are stored, what each scope allows, and when they are refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.commands.serve import NEEDS, command
from fairlane.errors import AccessTokenNotFound, InvalidArgument
from fairlane.web.access import SCOPES, TokenFile, all_scopes
from fairlane.web.app import ENDPOINTS
from tests.cli.program import END_S
from tests.support.run.for_each import for_each
from tests.web.calls import listening, next_event
from tests.web.serving import Serving

if TYPE_CHECKING:
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
    "proxies": (),
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
                own_page = {"Sec-Fetch-Site": "same-origin"}
                given = {"Authorization": f"Bearer {token}", **own_page}
                line.request(method, path, headers=given)
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


def test_a_file_that_others_may_write_is_refused(program: Program):
    token = program("token", "create", "ci", "--scope", "admin").id
    path = program.folder / "home" / "tokens.json"
    with Serving(program) as serving:
        path.chmod(0o666)
        assert serving.curl("-H", f"Authorization: Bearer {token}", "/v1/me").status == 503
        path.chmod(0o600)
        assert serving.curl("-H", f"Authorization: Bearer {token}", "/v1/me").status == 200
    path.chmod(0o620)
    program("serve").refused(2, "can be written by other users")
    program("token", "create", "two", "--scope", "view").refused(2, "can be written by other")
    path.chmod(0o600)
    path.parent.chmod(0o777)
    program("serve").refused(2, "who may write its folder")
    path.parent.chmod(0o700)
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)
    elsewhere.chmod(0o777)
    program("serve").refused(2, "can be replaced by other users", str(elsewhere))
    elsewhere.chmod(0o700)


def test_a_file_or_a_folder_of_another_user_is_refused(
    file: TokenFile, monkeypatch: pytest.MonkeyPatch
):
    file.create("ci", ["admin"])
    strange = os.stat_result((0o600, 1, 1, 1, os.geteuid() + 1, 0, 9, 0, 0, 0))
    monkeypatch.setattr("fairlane.web.access.os.fstat", lambda _: strange)
    with pytest.raises(InvalidArgument, match="belongs to another user"):
        file.all()
    monkeypatch.undo()
    assert len(file.all()) == 1
    folder = os.stat_result((0o40755, 1, 1, 1, os.geteuid() + 1, 0, 9, 0, 0, 0))
    plain = Path.stat
    monkeypatch.setattr(Path, "stat", lambda one: folder if one != file.path else plain(one))
    with pytest.raises(InvalidArgument, match="who owns its folder"):
        TokenFile(file.path).all()


@pytest.mark.parametrize(
    "change",
    [
        {"scopes": ["root"]},
        {"sha256": ""},
        {"id": "x"},
        {"name": "a\u001b[2J"},
        {"keys": [""]},
        {"expires": "2030-01-01T00:00:00"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_file_with_a_token_that_is_none_is_refused(file: TokenFile, change: dict[str, object]):
    file.create("ci", ["submit"])
    raw = json.loads(file.path.read_text())
    raw["tokens"][0].update(change)
    file.path.write_text(json.dumps(raw))
    with pytest.raises(InvalidArgument):
        TokenFile(file.path).all()


def test_a_damaged_file_ends_the_start(program: Program):
    program("token", "create", "ci", "--scope", "admin")
    (program.folder / "home" / "tokens.json").write_text("{")
    program("serve").refused(2, "is no file of tokens")


def test_a_token_that_is_made_later_is_needed_from_the_next_call(program: Program):
    with Serving(program) as serving:
        assert serving.curl("/v1/me").json["has_tokens"] is False
        assert '"bearer"' not in serving.curl("/openapi.json").body.decode()
        with listening(serving, "-H", "Accept: text/event-stream", "/v1/live") as reader:
            assert next_event(reader)["event"] == "live"
            token = program("token", "create", "ci", "--scope", "view").id
            assert serving.curl("/v1/me").status == 401
            assert serving.curl("-H", f"Authorization: Bearer {token}", "/v1/me").status == 200
            assert '"bearer"' in serving.curl("/openapi.json").body.decode()
            events = iter(lambda: next_event(reader)["event"], "problem")
            assert set(events) <= {"live"}
        (program.folder / "home" / "tokens.json").unlink()
        assert serving.curl("/v1/me").status == 401


@pytest.mark.rest
@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For: 1.2.3.4", "Via: 1.1 proxy", "Forwarded: for=1.2.3.4", "X-Real-IP: 1.2.3.4",
     "X-Forwarded-Proto: https", "CF-Connecting-IP: 1.2.3.4", "True-Client-IP: 1.2.3.4",
     "x-forwarded-host;", "X-Originating-IP: 1.2.3.4", "X-Varnish: 7"],
)  # fmt: skip
def test_without_tokens_what_a_proxy_passes_on_is_refused(serving: Serving, header: str):
    for path in ("/v1/me", "/", "/docs"):
        assert serving.curl("-H", header, path).status == 403, path


@pytest.mark.rest
def test_without_tokens_the_address_that_is_served_may_be_called(program: Program):
    with Serving(program, "--host", "127.0.0.2") as serving:
        assert serving.url.startswith("http://127.0.0.2:")
        assert serving.curl("/v1/me").status == 200
        assert serving.curl("-H", "Host: 127.0.0.3", "/v1/me").status == 403


def test_without_tokens_what_nginx_sends_by_itself_is_refused(serving: Serving):
    assert serving.curl("-0", "-H", "Connection: close", "/v1/me").status == 403
    assert serving.curl("-0", "/v1/me").status == 200


def test_with_tokens_a_proxy_may_pass_calls_on(program: Program):
    token = program("token", "create", "ci", "--scope", "view").id
    with Serving(program) as serving:
        words = ("-H", f"Authorization: Bearer {token}", "-H", "X-Forwarded-For: 1.2.3.4")
        assert serving.curl(*words, "/v1/me").status == 200


def test_a_head_that_would_take_messages_is_refused(serving: Serving):
    name = serving.call("POST", "/messages", {"message": "one"}).json["id"]
    assert serving.curl("-I", "/messages").status == 405
    assert [one["id"] for one in serving.curl("/messages").json] == [name]
    assert serving.curl("-I", "/v1/queue").status == 200


@pytest.mark.rest
def test_long_calls_end_when_their_token_is_revoked(program: Program):
    made = json.loads(program("token", "create", "ci", "--scope", "admin", "--json").out)
    bearer = f"Authorization: Bearer {made['token']}"
    events = ("-H", bearer, "-H", "Accept: text/event-stream")
    with Serving(program) as serving:
        serving.call("POST", "/v1/requests", {"bodies": ["a"], "id": "r1"},
                     Authorization=f"Bearer {made['token']}")  # fmt: skip
        paths = ("/v1/live", "/v1/completions", "/v1/requests/r1/live", "/v1/requests/r1/results")
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(listening(serving, *events, path)) for path in paths]
            content = ("-X", "POST", "-H", bearer, "-d", '{"wait_s": 30}')
            json_type = ("-H", "Content-Type: application/json")
            serving.curl("-X", "POST", "-H", bearer, "/v1/take")  # so the next one waits
            taking = stack.enter_context(listening(serving, *content, *json_type, "/v1/take"))
            (row,) = program("token", "list", "--json").out.splitlines()
            program("token", "revoke", json.loads(row)["id"])
            for path, reader in zip(paths, readers, strict=True):
                for event in iter(lambda reader=reader: next_event(reader), None):  # type: ignore[misc]
                    if event["event"] == "problem":
                        assert json.loads(event["data"])["status"] == 401, path
                        break
            assert taking.stdout
            assert json.loads(taking.stdout.read())["status"] == 401


def test_the_file_keeps_hashes_and_is_private(program: Program):
    token = program("token", "create", "ci", "--scope", "submit", "--scope", "consume").id
    path = program.folder / "home" / "tokens.json"
    assert token not in path.read_text()
    assert token.split("_", 2)[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    head, line = program("token", "list").out.decode().splitlines()
    assert head.split() == ["ID", "NAME", "SCOPES", "KEYS", "CREATED", "EXPIRES"]
    assert line.split()[1:4] == ["ci", "submit,consume", "-"]


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

    monkeypatch.setattr("fairlane.web.access.hmac.compare_digest", compare)
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


@for_each("missing", NEEDS)
def test_without_the_extra_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str):
    def spec_of(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr("fairlane.cli.commands.serve.find_spec", spec_of)
    with pytest.raises(InvalidArgument, match=r"needs the extra web: pip install '\.\[web\]'"):
        command.callback(**OPTIONS)  # type: ignore[misc]
