"""Tests the dashboard's files, its policy, and the sessions that its cookies name."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, cast

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fairlane.common.text import printable
from fairlane.errors import RedisUnreachable
from fairlane.web import access
from fairlane.web.access import TokenFile
from fairlane.web.app import DESCRIBED, Site, make_app
from fairlane.web.dashboard.files import FOLDER, files
from tests.web.calls import listening, next_event
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.aio.queue import Queue
    from tests.cli.program import Program

PAGE = "Sec-Fetch-Site: same-origin"
INLINE = re.compile(r"<script(?! [^>]*src=)|<style|\sstyle=|\son\w+=|javascript:|https?://")
AS_MARKUP = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function)\b"
)


class Away:
    """A driver whose Redis is away."""

    async def run(self, operation: Any) -> None:
        operation.close()
        raise RedisUnreachable("Redis is away")


class Named:
    """A queue of which only the name is read: its Redis is away."""

    name = "req"
    snapshot = errors = demand = None
    driver = Away()

    async def close(self) -> None:
        """Closes nothing."""


def site(**options: Any) -> Site:
    return Site(cast("Queue", Named()), **options)


def ask(app: Starlette, method: str, path: str, **given: Any) -> httpx2.Response:
    """Calls an application in this process, as its own page does."""

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.headers["Sec-Fetch-Site"] = "same-origin"
            return await client.request(method, path, **given)

    return asyncio.run(send())


@pytest.fixture
def token(program: Program) -> str:
    return program("token", "create", "night", "--scope", "operate").id


def signed_in(guarded: Serving, token: str) -> str:
    given = json.dumps({"token": token})
    answer = guarded.curl(
        "-X",
        "POST",
        "-H",
        PAGE,
        "-d",
        given,
        "-H",
        "Content-Type: application/json",
        "/dashboard/session",
    )
    assert answer.status == 204, answer.body
    return answer.headers["set-cookie"].partition(";")[0]


def test_the_page_and_its_files_have_a_policy_and_a_tag(serving: Serving):
    page = serving.curl("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    again = serving.curl("-H", f"If-None-Match: {page.headers['etag']}", "/")
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", page.headers["etag"])
    assert serving.curl("-H", 'If-None-Match: "other"', "/").status == 200
    for name in re.findall(r'(?:src|href)="([^"]+\.\w+)"', page.body.decode()):
        found = serving.curl(f"/{name}")
        assert found.status == 200, name
        assert found.headers["content-security-policy"] == policy
    assert serving.curl("/v1/requests").headers["cache-control"] == "no-store"


def test_no_path_leads_out_of_the_folder(serving: Serving):
    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "shell", "nothing.js"):
        answer = serving.curl("--path-as-is", f"/dashboard/{path}")
        assert answer.status == 404, path


def test_nothing_is_inline_or_from_another_host():
    assert INLINE.findall((FOLDER / "index.html").read_text()) == []
    for path in FOLDER.rglob("*.js"):
        text = path.read_text()
        assert AS_MARKUP.findall(text) == [], path
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], path
    for path in FOLDER.rglob("*.css"):
        assert re.findall(r"url\(|@import", path.read_text()) == [], path


def test_every_module_that_a_module_imports_is_there():
    for path in FOLDER.rglob("*.js"):
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / name).is_file(), (path, name)


def test_the_page_and_the_command_line_escape_the_same_characters():
    text = (FOLDER / "parts" / "dom.js").read_text()
    (found,) = re.findall(r"HIDDEN =\s+/(\[.+\])/g", text)
    hidden = re.compile(found)
    for number in range(0x10000):
        one = chr(number)
        if one in "\t\n" or 0xD800 <= number < 0xE000:  # JSON has no half characters
            continue
        assert (printable(one) != one) == bool(hidden.match(one)), hex(number)


def test_the_audit_trail_has_words_for_each_change():
    words = (FOLDER / "pages" / "request" / "trail.js").read_text()
    changes = [f"{one.method} {one.path}" for one in DESCRIBED if one.changes]
    assert [one for one in changes if f'"{one}": "' not in words] == []


def test_files_and_folders_are_small():
    for path in [*FOLDER.rglob("*.js"), *FOLDER.rglob("*.css")]:
        assert len(path.read_text().splitlines()) <= 400, path
    for folder in (FOLDER, *(path for path in FOLDER.rglob("*") if path.is_dir())):
        assert sum(path.is_file() for path in folder.iterdir()) <= 9, folder


@pytest.mark.rest
def test_a_link_of_another_site_may_lead_to_the_page_but_not_to_data(serving: Serving):
    link = ("-H", "Sec-Fetch-Site: cross-site")
    assert serving.curl(*link, "/").status == 200
    assert serving.curl(*link, "/v1/requests").status == 403
    assert serving.curl("-H", "Host: evil.example", "/").status == 403


def test_a_token_is_exchanged_for_a_cookie_that_no_script_reads(program: Program, token: str):
    with Serving(program) as guarded:

        def sign_in(given: str, *words: str) -> Any:
            content = ("-H", "Content-Type: application/json", "-d", json.dumps({"token": given}))
            return guarded.curl("-X", "POST", *words, *content, "/dashboard/session")

        answer = sign_in(token, "-H", PAGE)
        assert answer.status == 204
        assert token.rpartition("_")[2].lower() not in answer.headers["set-cookie"]
        attributes = set(answer.headers["set-cookie"].split("; ")[1:])
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= attributes
        assert "secure" not in attributes
        encrypted = sign_in(token, "-H", PAGE, "-H", "Origin: https://queue.example")
        assert "secure" in encrypted.headers["set-cookie"].split("; ")
        wrong = sign_in(f"{token[:-1]}x", "-H", PAGE)
        assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
        elsewhere = sign_in(token)
        assert (elsewhere.status, "set-cookie" in elsewhere.headers) == (403, False)
        assert "over https, or at localhost" in elsewhere.json["detail"]


@pytest.mark.rest
def test_a_cookie_counts_only_in_calls_of_the_servers_own_page(program: Program, token: str):
    with Serving(program) as guarded:
        cookie = signed_in(guarded, token)

        def status(*words: str, path: str = "/v1/me") -> int:
            return guarded.curl("-H", f"Cookie: {cookie}", *words, path).status

        assert status("-H", PAGE) == 200
        assert status() == 401
        for other in ("cross-site", "same-site", "none"):
            assert status("-H", f"Sec-Fetch-Site: {other}") == 401, other
        post = ("-X", "POST", "-H", "Sec-Fetch-Site: cross-site")
        assert status(*post, path="/v1/queue/pause") == 401
        assert (
            status("-H", PAGE, "-H", "Authorization: Bearer no") == 401
        )  # a bearer token counts first
        out = guarded.curl("-X", "DELETE", "/dashboard/session")
        assert (out.status, "max-age=0" in out.headers["set-cookie"]) == (204, True)
        assert status("-H", PAGE) == 200  # nothing was signed out without the cookie
        (row,) = program("token", "list", "--json").out.splitlines()
        program("token", "revoke", json.loads(row)["id"])
        assert status("-H", PAGE) == 401


@pytest.mark.rest
def test_a_session_ends_with_the_sign_out(program: Program, token: str):
    with Serving(program) as guarded:
        first, second = signed_in(guarded, token), signed_in(guarded, token)
        words = ("-H", PAGE, "-H", f"Cookie: {first}")
        events = (*words, "-H", "Accept: text/event-stream")
        with listening(guarded, *events, "/v1/live") as reader:
            assert next_event(reader)["event"] == "live"
            assert guarded.curl("-X", "DELETE", *words, "/dashboard/session").status == 204
            assert guarded.curl(*words, "/v1/me").status == 401
            while (event := next_event(reader))["event"] == "live":
                pass
            assert json.loads(event["data"])["status"] == 401
        still = ("-H", PAGE, "-H", f"Cookie: {second}")
        assert guarded.curl(*still, "/v1/me").status == 200
        trail = guarded.curl(*still, "/v1/audit").json["entries"]
        assert ("night", "DELETE /dashboard/session") in [
            (one["who"], one["action"]) for one in trail
        ]


def test_sessions_are_bounded_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "MAX_SESSIONS", 4)
    monkeypatch.setattr(access, "MAX_SESSIONS_OF_TOKEN", 3)
    file, sessions = TokenFile(tmp_path / "tokens.json"), access.Sessions()
    one, two = (file.create(name, ["view"])[0] for name in ("one", "two"))
    texts = [sessions.begin(one, 0.0) for _ in range(4)]
    assert [sessions.find(text, 1.0) for text in texts] == [None, one, one, one]
    others = [sessions.begin(two, 0.0) for _ in range(2)]
    assert (len(sessions), sessions.find(texts[1], 1.0)) == (4, None)
    assert sessions.find(others[1], access.SIGNED_IN_S - 1.0) == two
    assert sessions.find(others[1], access.SIGNED_IN_S + 1.0) is None


@pytest.mark.parametrize("words", [(), ("-H", PAGE)])
def test_a_sign_in_is_judged_before_its_content_is_read(
    program: Program, token: str, words: tuple[str, ...]
):
    with Serving(program) as guarded:
        large = ("-X", "POST", "-H", "Content-Type: application/json", "-H", "Expect:")
        head = ("-H", "Content-Length: 8000000", "-m", "20", "-d", "{")
        if words:
            answer = guarded.curl(*large, *words, "-d", "x" * 2_000, "/dashboard/session")
            assert (answer.status, "1,024 bytes" in answer.json["detail"]) == (413, True)
        else:  # nothing of it comes
            assert guarded.curl(*large, *head, "/dashboard/session").status == 403


def test_a_token_that_may_only_look_may_not_change(program: Program):
    token = program("token", "create", "look", "--scope", "view").id
    with Serving(program) as guarded:
        words = ("-H", PAGE, "-H", f"Cookie: {signed_in(guarded, token)}")
        assert guarded.curl(*words, "/v1/me").json["scopes"] == ["view"]
        assert guarded.curl(*words, "/v1/requests").status == 200
        assert guarded.curl("-X", "POST", *words, "/v1/queue/pause").status == 403
        assert guarded.curl(*words, "/v1/audit").status == 403


def test_without_tokens_there_is_nothing_to_sign_in_to(serving: Serving):
    refused = serving.call("POST", "/dashboard/session", {"token": "x"})
    assert (refused.status, "has no tokens" in refused.json["detail"]) == (409, True)


def test_each_queue_has_a_cookie_of_its_own(tmp_path: Path):
    file = TokenFile(tmp_path / "tokens.json")
    _, text = file.create("night", ["view"])
    app = make_app(site(tokens=file))
    other = site(tokens=file)
    other.queue.name = "other"
    names = set()
    for one in (app, make_app(other)):
        answer = ask(one, "POST", "/dashboard/session", json={"token": text})
        assert answer.status_code == 204
        names |= {*answer.cookies}
    assert len(names) == 2


def test_it_can_be_mounted_below_a_prefix(tmp_path: Path):
    file = TokenFile(tmp_path / "tokens.json")
    _, text = file.create("night", ["view"])
    outer = Starlette(routes=[Mount("/ops/queue", make_app(site(tokens=file)))])
    page = ask(outer, "GET", "/ops/queue/")
    assert page.status_code == 200
    for name in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert not name.startswith("/")
        assert name == "docs" or ask(outer, "GET", f"/ops/queue/{name}").status_code == 200
    answer = ask(outer, "POST", "/ops/queue/dashboard/session", json={"token": text})
    assert "; path=/ops/queue/;" in f"{answer.headers['set-cookie'].lower()};"
    ((name, session),) = answer.cookies.items()
    cookies = {"Cookie": f"{name}={session}"}
    assert ask(outer, "GET", "/ops/queue/v1/me", headers=cookies).json()["name"] == "night"


def test_every_file_of_the_folder_is_served():
    assert set(files()) == {
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()
    }
