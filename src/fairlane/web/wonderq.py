"""WonderQ's three endpoints: post a message, get messages, delete one that is processed.

A message is a sub-request. Its id is the id of its request, and for the second and later ones of a
request `ID~INDEX`. WonderQ has no receipts: a caller that has the id of a message may delete it
while any program holds it. What a worker handles cannot be deleted.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec
from starlette.responses import Response

from fairlane import settings
from fairlane.aio.taken import AsyncTaken
from fairlane.errors import ReceiptExpired
from fairlane.operations.take import find_receipt
from fairlane.web.access import UNAUTHORIZED
from fairlane.web.answers import JSON, Refusal, answer
from fairlane.web.requests import submit_for
from fairlane.web.route import FORM, MOST_SMALL, Endpoint, content, decoded, media_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.web.app import Site

MISSING, UNKNOWN = "Missing message", "Message does not exist"
_MAX_FIELDS = 100  # of a form
_ID = re.compile(r"([A-Za-z0-9_.:-]{1,128})(?:~([1-9]\d{0,9}))?")


class TakenMessage(msgspec.Struct):
    """A message that was taken."""

    id: str
    message: str


class PostedMessage(msgspec.Struct):
    """The id of a new message."""

    id: str


class NewMessage(msgspec.Struct):
    """A message to post; also as a form."""

    message: str


class Error(msgspec.Struct):
    """Why a call was refused, in one sentence."""

    error: str


async def post(site: Site, request: Call) -> Response:
    """Posts a message as a request of one sub-request."""
    raw = await content(request, 2 * settings.MAX_BODY)
    reading = partial(_message, raw, media_of(request))
    # Many escapes take long to read, so others are served meanwhile.
    text = await asyncio.to_thread(reading) if len(raw) > MOST_SMALL else reading()
    made, _ = await submit_for(site, request, [text])
    return answer(PostedMessage(made), 201)


async def get(site: Site, request: Call) -> Response:
    """Takes messages: they are hidden from others for the visibility time."""
    taken = await site.queue.take(settings.TAKE_MOST, visible_for=site.visible_s)
    await site.tally.took(request, "GET /messages", len(taken))
    return answer(
        [TakenMessage(_id_of(one), (one.body or b"").decode("utf-8", "replace")) for one in taken]
    )


async def delete(site: Site, request: Call) -> Response:
    """Settles a message that a program holds."""
    match = _ID.fullmatch(request.path_params["id"])
    if match is None:
        raise Refusal(404, UNKNOWN)
    found = find_receipt(site.queue.name, match[1], int(match[2] or 0))
    receipt = await site.queue.driver.run(found)
    if receipt is None:
        raise Refusal(404, UNKNOWN)
    try:
        await AsyncTaken(site.queue.driver, receipt, None, None).done()
    except ReceiptExpired:  # its time ended meanwhile
        raise Refusal(404, UNKNOWN) from None
    return Response(status_code=204)


def _id_of(taken: AsyncTaken) -> str:
    return taken.id if taken.index == 0 else f"{taken.id}~{taken.index}"


def _message(raw: bytes, media: str) -> str:
    if media == FORM:
        if raw.count(b"&") >= _MAX_FIELDS:
            raise Refusal(422, f"the form has more than {_MAX_FIELDS} fields: send message alone")
        form = parse_qs(raw.decode("utf-8", "replace"), keep_blank_values=True)
        texts = form.get("message", [""])
        if len(texts) > 1:
            raise Refusal(422, MISSING)
        text: object = texts[0]
    elif media in {"", JSON}:
        given = decoded(raw or b"{}", object)
        text = given.get("message") if isinstance(given, dict) else None
    else:
        raise Refusal(415, f"{media} is not read here: send {JSON} or {FORM}")
    if not isinstance(text, str) or not text:
        raise Refusal(422, MISSING)
    return text


def _render(refusal: Refusal) -> Response:
    text = UNAUTHORIZED if refusal.status in {401, 403} else refusal.detail
    raw = msgspec.json.encode(Error(text))
    return Response(raw, refusal.status, refusal.headers, JSON)


ENDPOINTS = (
    Endpoint(
        method="POST", path="/messages", handle=post, summary="Post a message", group="Messages",
        scopes=("submit",), takes=NewMessage, gives=PostedMessage, status=201, accepts=(FORM,),
        refuses=(422,), render=_render,
    ),
    Endpoint(
        method="GET", path="/messages", handle=get, group="Messages",
        summary="Take messages, up to 100", scopes=("consume",), gives=list[TakenMessage],
        is_safe=False, render=_render,
    ),
    Endpoint(
        method="DELETE", path="/messages/{id}", also=("/message/{id}",), handle=delete,
        summary="Settle a message that was taken", group="Messages", scopes=("consume",),
        status=204, refuses=(404,), render=_render,
    ),
)  # fmt: skip
