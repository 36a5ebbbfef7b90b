"""Reads the file of a multipart form while it comes: nothing of it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.web.endpoint.problem import Refusal
from fairlane.web.endpoint.reading import parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

_HEADERS_MOST = 8 << 10  # bytes of all names and values of the headers of one part
_NO_FORM = "the content is no multipart form"


class _Parts:
    """What the parser has found: the file's bytes that were not read yet, and what is refused."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.files = 0
        self.is_whole = False
        self.refusal: Refusal | None = None
        self._name = self._value = self._place = b""
        self._length = 0

    def callbacks(self) -> dict[str, Any]:
        """Returns what the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._name = self._value = self._place = b""
        self._length = 0

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._bounded(data, start, end)

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._bounded(data, start, end)

    def _bounded(self, data: bytes, start: int, end: int) -> bytes:
        self._length += end - start
        if self._length > _HEADERS_MOST:
            self._refuse(Refusal(400, f"{_NO_FORM}: a part's headers are too long"))
            return b""
        return data[start:end]

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._place = self._value
        self._name = self._value = b""

    def _end_headers(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._place)
        if b"filename" not in options:
            self._refuse(Refusal(422, "a form has only a file: give options as parameters"))
        self.files += 1
        if self.files > 1:
            self._refuse(Refusal(422, "the form has two files: send each in a call of its own"))

    def _add(self, data: bytes, start: int, end: int) -> None:
        self.found.append(data[start:end])

    def _end(self) -> None:
        self.is_whole = True

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = self.refusal or refusal


async def file_parts(request: Request) -> AsyncIterator[bytes]:
    """Yields the file of a form as it comes.

    Raises Refusal: 400 if it is no form or breaks off, 422 if it has anything but one file.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(request.headers.get("content-type", ""))
    state = _Parts()
    try:
        parser = MultipartParser(options.get(b"boundary", b""), state.callbacks())  # type: ignore[arg-type]
        async for part in parts(request):
            parser.write(part)
            if state.refusal:
                raise state.refusal
            for data in state.found:
                yield data
            state.found.clear()
    except FormParserError:
        raise Refusal(400, f"{_NO_FORM}: send multipart/form-data with one file") from None
    if not state.is_whole or not state.files:
        raise Refusal(400, f"{_NO_FORM} with one file, or it breaks off")
