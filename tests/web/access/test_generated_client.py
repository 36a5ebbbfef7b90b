"""Tests that a generator of clients makes one from our description, and that it works."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.web.app import DESCRIBED
from fairlane.web.openapi import make_document
from tests.cli.program import END_S
from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program

NAME = "client_of_fairlane"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Generates a client; returns a function that imports a module of it."""
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(make_document(DESCRIBED, has_tokens=True)))
    generator = Path(sys.executable).parent / "openapi-python-client"
    config = tmp_path / "config.yml"
    config.write_text("post_hooks: []\n")
    words = [
        "generate",
        "--path",
        str(document),
        "--meta",
        "none",
        "--output-path",
        f"{tmp_path / NAME}",
    ]
    made = subprocess.run(
        [generator, *words, "--config", config], capture_output=True, timeout=END_S, check=False
    )
    assert made.returncode == 0, made.stdout
    warnings = re.findall(rb"(?m)^WARNING (.*)\n\n(.*)", made.stdout)
    lines = b"Unsupported content type application/x-ndjson"  # the client sends JSON or a form
    assert {reason for _, reason in warnings} <= {lines}, made.stdout
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda module: importlib.import_module(f"{NAME}.{module}")
    for module in [one for one in sys.modules if one.split(".")[0] == NAME]:
        del sys.modules[module]


@pytest.mark.rest
def test_a_generated_client_makes_a_round_trip(client: Any, program: Program, tmp_path: Path):
    token = program("token", "create", "client", "--scope", "admin").id
    models, results = client("models"), client("api.results.get_v1_requests_id_results")
    requests, taken = "api.requests.", "api.workers_in_any_language."
    with Serving(program) as serving:
        made = client("client").AuthenticatedClient(base_url=serving.url, token=token)
        with made as caller:

            def call(module: str, *words: Any, **given: Any) -> Any:
                return client(module).sync(*words, client=caller, **given)

            new = models.RequestToSubmit(bodies=["a", "b"], id="r1", limit=2, backoff=[0.5, 60.0])
            submitted = call(f"{requests}post_v1_requests", body=new)
            assert (submitted.id, submitted.total) == ("r1", 2)
            found = call(f"{taken}post_v1_take", body=models.Take(count=9)).taken
            for one in found:
                call(
                    f"{taken}post_v1_taken_receipt_done", one.receipt,
                    body=models.Done(result=one.body.upper()),
                )  # fmt: skip
            assert call(f"{requests}get_v1_requests_id", "r1").state == "done"
            text = results.sync("r1", client=caller)
            bodies = [models.ResultLine.from_dict(json.loads(x)).body for x in text.splitlines()]
            assert bodies == ["A", "B"]
            leases = call(f"{requests}get_v1_requests_id_leases", "r1").settled
            assert sum(one.done for one in leases) == 2
            file = tmp_path / "lines.txt"
            file.write_bytes(b"x\n\ny\n")
            with file.open("rb") as stream:
                sent = client("types").File(payload=stream, file_name="lines.txt")
                body = models.PostV1RequestsFilesBody(file=sent)
                assert call(f"{requests}post_v1_requests", body=body, id="r2").total == 3
            cancelled = call(
                f"{requests}post_v1_requests_id_cancel", "r2", body=models.Cancel(reason="enough")
            )
            assert (cancelled.state, cancelled.reason) == ("cancelled", "enough")
            listed = call(f"{requests}get_v1_requests", state=["done"]).requests
            assert [one.id for one in listed] == ["r1"]
            for name in ("r1", "r2"):
                client(f"{requests}delete_v1_requests_id").sync_detailed(name, client=caller)
            refused = call(f"{requests}get_v1_requests_id", "r1")
            assert (type(refused).__name__, refused.status) == ("Problem", 404)


def test_a_schema_has_the_name_of_its_type_and_a_tuple_has_an_end():
    document = make_document(DESCRIBED, has_tokens=True)
    names = [*document["components"]["schemas"]]
    assert [name for name in names if not re.fullmatch(r"[A-Za-z0-9_]+", name)] == []
    assert '"items": false' not in json.dumps(document)
    answer = document["paths"]["/v1/requests/{id}/results"]["get"]["responses"]["200"]["content"]
    for media in ("application/x-ndjson", "text/event-stream"):
        assert answer[media]["schema"]["type"] == "string"
        assert "ResultLine" in answer[media]["schema"]["description"]
    assert "ResultLine" in names
