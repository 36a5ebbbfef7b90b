"""Tests the spans of a program that takes and settles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import SpanKind

from fairlane.errors import ReceiptExpired
from fairlane.operations.take import parse_receipt
from tests.support.both_faces import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue


def names(found: list[Any]) -> list[tuple[str, str]]:
    return [(span.name, span.attributes["messaging.operation.type"]) for span in found]


@both_faces
def test_a_take_is_linked_to_the_submissions(queue: Queue, spans: Callable[[], list[Any]]):
    queue.post("a", id="r1")
    queue.post("b", id="r2")
    first, second = spans()
    taken = queue.take(2)
    (span,) = spans()
    assert (span.name, span.kind) == ("take req", SpanKind.CLIENT)
    assert span.attributes["messaging.batch.message_count"] == 2
    links = {link.attributes["messaging.message.id"]: link.context for link in span.links}
    assert {name: link.span_id for name, link in links.items()} == {
        "r1~0": first.context.span_id,
        "r2~0": second.context.span_id,
    }
    by_id = {one.id: one.trace.split("-")[2] for one in taken}
    assert by_id["r1"] == f"{first.context.span_id:016x}"


@both_faces
def test_what_settles_is_a_span_with_a_link(queue: Queue, spans: Callable[[], list[Any]]):
    queue.submit_request(["a", "b", "c"], id="r1")
    (sent,) = spans()
    one, two, three = queue.take(3)
    spans()
    one.done("A")
    two.dead("no")
    three.release()
    found = spans()
    assert names(found) == [(f"{verb} req", "settle") for verb in ("done", "dead", "release")]
    for span in found:
        assert [link.context.span_id for link in span.links] == [sent.context.span_id]
        assert span.attributes["fairlane.attempt"] == 1


def test_a_receipt_from_elsewhere_settles_without_a_link(
    queue: Queue, spans: Callable[[], list[Any]]
):
    queue.post("a", id="r1")
    (taken,) = queue.take()
    spans()
    held = queue.taken(taken.receipt)
    held.done()
    (span,) = spans()
    assert (held.trace, span.links) == ("", ())
    lost = queue.taken(replace(parse_receipt(queue.name, taken.receipt), request_id="r2").text)
    with pytest.raises(ReceiptExpired):
        lost.release()
    assert spans()[-1].attributes["error.type"] == "ReceiptExpired"
