"""A queue over HTTP: `fairlane serve`, and `asgi` for a place in another application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from starlette.applications import Starlette

__all__ = ["asgi"]


def asgi(
    queue: str = settings.DEFAULT_QUEUE,
    *,
    url: str | None = None,
    tokens: str | PathLike[str] | None,
    visible_s: float = settings.TAKE_VISIBLE_S,
    rate: str | None = None,
    burst: int | None = None,
    webhooks_to_private: bool = False,
    trusted_proxies: Iterable[str] = (),
) -> Starlette:
    """Returns the ASGI application of a queue, to be mounted under a path of another one.

    `tokens` is the file of bearer tokens; None admits every call, so the outer application must
    admit callers itself. `url` is that of the Redis, as of Queue.from_url. The other arguments are
    those of `fairlane serve`. Its lifespan delivers webhooks and closes the connections: an outer
    application does not run that of a mounted one, unless its own does
    `async with app.router.lifespan_context(app)`. Raises InvalidArgument.
    """
    from pathlib import Path

    from fairlane.aio.queue import Queue
    from fairlane.default_redis import resolve_url
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.web.access import CallRates, Proxies, TokenFile
    from fairlane.web.app import Site, make_app
    from fairlane.web.server import PATIENCE_S

    opened = Queue(AsyncDriver(resolve_url(url), patience_s=PATIENCE_S), queue)
    site = Site(
        opened,
        TokenFile(Path(tokens)) if tokens is not None else None,
        visible_s,
        hosts=None,
        rates=None if rate is None else CallRates(rate, burst),
        hooks_to_private=webhooks_to_private,
        proxies=Proxies(trusted_proxies),
    )
    return make_app(site)
