"""/v1/keys: the keys of limits and orders, what holds them and waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.errors import InvalidArgument
from fairlane.protocol.keys import check_key_name
from fairlane.records import KeyPage, KeyState
from fairlane.web.answers import Refusal, answer
from fairlane.web.route import Endpoint, Limit, caller_of, document, query
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


class KeyLimit(msgspec.Struct, forbid_unknown_fields=True):
    """The limit of a key, 1 to 10,000 leases; null: that of its task, or of its first request."""

    limit: int | None


class KeyLimitSet(msgspec.Struct):
    """The limit of a key now and before the call; null: it has none while it is not used."""

    name: str
    limit: int | None
    former: int | None


class Which(msgspec.Struct, forbid_unknown_fields=True):
    """`order`: the order of this name, if a limit has it, too."""

    order: bool = False


class OrderResumed(msgspec.Struct):
    """The request that had stopped those behind it; null: nothing had stopped them."""

    name: str
    resumed: str | None


async def list_keys(site: Site, call: Call) -> Response:
    """Lists the keys that are used or set, by name, each with what holds it and waits for it.

    Up to 100 of them may be some seconds old; a change by this server is always in them.
    """
    limit = query(call, Limit).limit
    shared = await site.key_page.get()
    if limit <= len(shared.keys):
        return answer(KeyPage(shared.keys[:limit], more=shared.more or limit < len(shared.keys)))
    return answer(await site.queue.keys(limit) if shared.more else shared)


async def show(site: Site, call: Call) -> Response:
    """Shows a key: its limit, the requests that hold it, and those that come next."""
    return answer(await _state(site, _name_of(call), order=query(call, Which).order))


async def set_limit(site: Site, call: Call) -> Response:
    """Sets the limit of a key until it is set to null; then its task or a request sets it.

    A higher limit starts what waits; leases above a lower one end as ever. A token with keys
    (`fairlane token create --key`) may set and name in `limits` only those. A token without them
    may all if it has the scope operate, else none.
    """
    name, given = _name_of(call), await document(call, KeyLimit)
    await trail_of(call).note(object_id=name, given=f"limit={given.limit}")
    caller_of(call).check_keys([name])
    former = await site.queue.set_key(name, given.limit)
    site.key_page.forget()
    limit = given.limit
    if limit is None:
        try:
            limit = (await site.queue.key(name)).limit
        except InvalidArgument:  # it is not used
            limit = None
    return answer(KeyLimitSet(name, limit, former))


async def resume(site: Site, call: Call) -> Response:
    """Lets the requests of an order key go on behind one that ended with dead sub-requests.

    With `order_on_dead` stop such a request stops those behind it until then. A token may do so for
    the keys for which it may set a limit.
    """
    name = _name_of(call)
    await trail_of(call).note(object_id=name)
    caller_of(call).check_keys([name])
    resumed = await site.queue.resume_key(name)
    site.key_page.forget()
    if resumed is None:
        await _state(site, name, order=True)
    return answer(OrderResumed(name, resumed))


async def _state(site: Site, name: str, *, order: bool) -> KeyState:
    """Returns the state of a key in use. Raises Refusal."""
    try:
        return await site.queue.key(name, order=order)
    except InvalidArgument as error:
        raise Refusal(404, str(error)) from None


def _name_of(call: Call) -> str:
    """Returns the key that the path names. Raises Refusal."""
    try:
        name = check_key_name(call.path_params.get("name") or f"task/{call.path_params['task']}")
    except InvalidArgument as error:
        raise Refusal(404, str(error)) from None
    return name


_ONE, _TASK, _GROUP = "/v1/keys/{name}", "/v1/keys/task/{task}", "Keys"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/keys", handle=list_keys, group=_GROUP, scopes=("view",),
        summary="List the keys", query=Limit, gives=KeyPage, refuses=(422,),
    ),
    Endpoint(
        method="GET", path=_ONE, handle=show, group=_GROUP, scopes=("view",), also=(_TASK,),
        summary="Show a key", query=Which, gives=KeyState, refuses=(404, 422),
    ),
    Endpoint(
        method="PUT", path=_ONE, handle=set_limit, group=_GROUP, scopes=("operate",),
        also=(_TASK,), summary="Set the limit of a key", takes=KeyLimit, gives=KeyLimitSet,
        refuses=(404, 422), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Let the order of a key go on", gives=OrderResumed, refuses=(404,), changes=True,
    ),
)  # fmt: skip
