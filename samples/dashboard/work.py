"""The handler of the dashboard's demo: it waits as long as a body says, and fails some of them."""

from __future__ import annotations

import asyncio
import json

from fairlane import Reject


async def handle(body: bytes) -> bytes:
    """Waits `ms`, and then raises what the body names, or returns a result."""
    given = json.loads(body)
    if isinstance(given, list):  # the results of the children of a flow's step
        given = {"n": len(given)}
    await asyncio.sleep(given.get("ms", 50) / 1000)
    problem = given.get("problem")
    if problem == "port":
        raise ConnectionError(f"port of warehouse {given['n'] % 3} refuses")
    if problem == "address":
        raise Reject("the order has no postal address")
    if problem == "price":
        raise ValueError("price is negative")
    return json.dumps({"n": given.get("n", 0), "ok": True}).encode()
