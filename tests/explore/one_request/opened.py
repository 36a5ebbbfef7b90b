"""Explores an open request: its producer adds chunks, and seals it or abandons it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fairlane import settings
from fairlane.errors import RedisFull
from fairlane.operations.submit import open_request
from fairlane.options import Policy
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import REQUEST


def opener(
    chunks: int = 2,
    *,
    name: str = "p",
    seals: bool = True,
    deadline_ms: int = 0,
    comings: int = 1,
) -> Role:
    """Opens a request with one sub-request, adds others one by one, and `seals` it.

    If it starts again, it continues where the request is.
    """
    given = {"chunks": chunks, "seals": seals, "deadline_ms": deadline_ms, "comings": comings}
    return Role(name, "opener", tuple(given.items()))


@kind("opener")
async def _open(role: Role, _: tuple[Any, ...]) -> Any:
    policy = Policy(
        limit=1, attempts=2, backoff_ms=(1000, 1000), deadline_ms=role.option("deadline_ms")
    )
    request = await open_request(REQUEST, policy, [b"0"], open_ms=settings.OPEN_MS)
    while request.chunks < role.option("chunks") and not request.is_sealed:
        # A chunk for which there was no room is added again, by the same call.
        with suppress(RedisFull):
            await request.add([b"%d" % request.chunks])
    if role.option("seals"):
        return await request.seal()
    return None
