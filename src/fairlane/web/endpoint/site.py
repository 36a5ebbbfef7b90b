"""What the endpoints of one server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.web.endpoint.follower import Follower
from fairlane.web.live.broadcast import Broadcast
from fairlane.web.live.examination import Examination

if TYPE_CHECKING:
    from fairlane.aio.queue import Queue
    from fairlane.web.access.rates import CallRates
    from fairlane.web.access.tokens import TokenFile


@dataclass
class Site:
    """A queue, who may call, and whether the server is stopping.

    `tokens` is None if every caller of this machine may do everything. A taken message is held for
    `visible_s` seconds. `hosts` are the names by which a server without tokens may be called,
    None = the application around it decides.
    `rates` bounds how often a caller calls; None = not at all. Webhooks may call addresses that are
    not of the Internet if `hooks_to_private`.
    """

    queue: Queue
    tokens: TokenFile | None = None
    visible_s: float = settings.TAKE_VISIBLE_S
    hosts: frozenset[str] | None = frozenset({"localhost", "127.0.0.1", "::1"})
    rates: CallRates | None = None
    hooks_to_private: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    follower: Follower = field(default_factory=Follower)
    examination: Examination = field(default_factory=Examination)
    live: Broadcast = field(init=False)

    def __post_init__(self) -> None:
        self.live = Broadcast(self.queue.snapshot)
