"""Keeps what a step of a flow reads of others, until the last one of them has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Command, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence


async def keep_ended(ids: Sequence[str]) -> None:
    """Keeps ended requests for their own `retain` from now on, if half of that is over."""
    left = await run_all([Command(b"PTTL", keys.request_hash(one)) for one in ids])
    rows = await run_all([hmget(one, "retain_ms") for one in ids])
    for one, ms, row in zip(ids, left, rows, strict=True):
        (text,) = parse_fields(["retain_ms"], row)
        retain_ms = int(text or 0)
        if 0 <= ms < retain_ms // 2:
            names = (keys.request_hash(one), keys.results(one), keys.dead(one), keys.errors(one))
            await Batch([Command(b"PEXPIRE", name, retain_ms) for name in names])


async def keep_origins(children: Sequence[str]) -> None:
    """Keeps for another month where the results of children come from, if half of it is over."""
    names = [keys.of_flow(child) for child in children]
    left = await run_all([Command(b"PTTL", one) for one in names])
    rows = zip(names, left, strict=True)
    short = [one for one, ms in rows if 0 <= ms < settings.FED_OPEN_MS // 2]
    await run_all([Command(b"PEXPIRE", one, settings.FED_OPEN_MS) for one in short])
