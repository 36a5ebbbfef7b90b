"""Errors as HTTP answers: problem details (RFC 9457)."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from fairlane import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


MEDIA = "application/problem+json"
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_log = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[errors.FairlaneError], int], ...] = (  # the first class that fits
    (errors.RequestExists, 409),
    (errors.InvalidArgument, 422),
    (errors.RequestNotFound, 404),
    (errors.DeadNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (errors.WebhookNotFound, 404),
    (errors.RequestEnded, 409),
    (errors.RequestClosed, 409),
    (errors.RequestNotEnded, 409),
    (errors.DataLost, 410),
    (errors.ReceiptExpired, 410),
    (errors.QueueFull, 429),
    (errors.NotDurable, 503),
    (errors.RedisError, 503),
)
AGAIN_S = 5  # Retry-After while Redis does not answer


class Problem(msgspec.Struct, omit_defaults=True):
    """Why a call was refused. `type` names the kind of problem, `detail` is one sentence."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


class Refusal(Exception):
    """Ends a call with this status and one sentence."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, kind: str = ""
    ) -> None:
        detail = detail.encode("utf-8", "backslashreplace").decode()  # JSON has no half characters
        super().__init__(detail)
        self.status, self.detail, self.headers, self.kind = status, detail, headers, kind

    @property
    def problem(self) -> Problem:
        """Returns the problem details."""
        kind = f"urn:fairlane:problem:{self.kind}" if self.kind else "about:blank"
        return Problem(HTTPStatus(self.status).phrase, self.status, self.detail, kind)


def refusal_of(error: Exception) -> Refusal:
    """Returns the refusal for an error of the package, or of anything else: that is a bug."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, errors.FairlaneError):
        _log.error("a call failed", exc_info=error)
        return Refusal(500, "this is a bug of the server: its log has the details")
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    name, text = type(error).__name__, str(error)
    if isinstance(error, errors.QueueFull):
        return Refusal(status, text, {"Retry-After": f"{error.retry_after_s:.0f}"}, name)
    if isinstance(error, errors.NotDurable):
        return Refusal(status, text, None, name)
    if isinstance(
        error, errors.RedisError
    ):  # its text names the server, which callers need not know
        _log.warning("%s", error)
        detail = "Redis does not answer or refuses the call: try again later"
        return Refusal(status, detail, {"Retry-After": str(AGAIN_S)}, name)
    return Refusal(status, text, None, name)


def as_problem(refusal: Refusal) -> Response:
    """Returns the answer with problem details."""
    content = msgspec.json.encode(refusal.problem)
    return Response(content, refusal.status, refusal.headers, MEDIA)


_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SIGN = re.compile("|".join(_BOUNDS))
_WRONG = re.compile(r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<given>[^`]+)`| (?P<bound>.+?))?")
_CHOICE = re.compile(r"Invalid enum value (?P<given>.+)")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>[^`]+)`")


def type_sentence(error: str) -> str:
    """Returns what msgspec reports of a value of another type, in the words of this API."""
    text, _, path = error.partition(" - at `")
    place = path.removesuffix("`").removeprefix("$").removeprefix(".")
    if field := _FIELD.fullmatch(text):
        name = field["name"] + (f" of {place}" if place else "")
        if field["what"] == "missing required":
            return f"field {name} is missing: give it"
        return f"field {name} is not known: correct its name, or leave it out"
    if choice := _CHOICE.fullmatch(text):
        name = place or "the content"
        return f"{name} {choice['given']:.40} is not known: /docs lists the values"
    found = _WRONG.fullmatch(text)
    if found is None:
        return f"{place or 'the content'} is not valid: see /docs"
    wanted = " or ".join(_TYPES.get(one, one) for one in found["wanted"].split(" | "))
    if found["bound"]:
        bound = _SIGN.sub(lambda sign: _BOUNDS[sign[0]], found["bound"].removesuffix(".0"))
        wanted += f" {bound}" if bound.startswith("of ") else f" of {bound}"
    given = _TYPES.get(found["given"], found["given"]) if found["given"] else "not valid"
    return f"{place or 'the content'} is {given}: {wanted} is expected"
