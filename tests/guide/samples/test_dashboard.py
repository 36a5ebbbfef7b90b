"""Tests that the handler of the dashboard's sample reads each body that the sample submits."""

from __future__ import annotations

import asyncio
import json
import runpy
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from fairlane import Reject
from tests.guide.blocks import ROOT

if TYPE_CHECKING:
    import pytest

FOLDER = ROOT / "samples" / "dashboard"
MEANT = {"port of warehouse", "the order has no postal", "price is negative"}


def test_the_handler_reads_the_bodies_of_each_request_schedule_and_flow(
    monkeypatch: pytest.MonkeyPatch,
):
    queue = MagicMock()
    runpy.run_path(str(FOLDER / "seed.py"))["seed"](queue, 0.01)
    handle = runpy.run_path(str(FOLDER / "work.py"))["handle"]
    bodies = [body for call in queue.submit_request.call_args_list for body in call.args[0]]
    bodies += [body for call in queue.submit_flow.call_args_list for body in call.args[1]]
    plans = queue.schedules.add.call_args_list
    assert len(plans) == 3
    bodies += [body for call in plans for body in call.kwargs["bodies"]]
    bodies.append(json.dumps([{"n": 1, "ok": True}, None]).encode())  # of a step that joins

    async def soon(_: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", soon)
    for body in bodies:
        try:
            result = asyncio.run(handle(body))
        except (Reject, ConnectionError, ValueError) as error:
            assert any(str(error).startswith(text) for text in MEANT), error  # noqa: PT017
        else:
            assert json.loads(result)["ok"] is True
