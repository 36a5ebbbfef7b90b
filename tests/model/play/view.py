"""Compares what Redis holds with the model, after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from fairlane.protocol.request_hash import unpacked
from tests.model.plain.words import Result, agree

if TYPE_CHECKING:
    from tests.model.plain.book import Book
    from tests.model.plain.reference import Request

_DIGEST = 16  # characters of the name of an error's text
Reads = list[tuple[Any, ...]]


def reads(request_id: str) -> Reads:
    """Returns the commands that read one request."""
    stream, counter, request, permits, leases, retries, results, dead, few, errors = (
        keys.request_keys(request_id)
    )
    return [
        ("HGETALL", request),
        ("HGETALL", permits),
        ("ZRANGE", leases, 0, -1, "WITHSCORES"),
        ("ZRANGE", retries, 0, -1, "WITHSCORES"),
        ("XPENDING", stream, stream, "-", "+", 1000),
        ("XLEN", stream),
        ("XINFO", "CONSUMERS", stream, stream),
        ("GET", counter),
        ("XRANGE", results, "-", "+"),
        ("XRANGE", dead, "-", "+"),
        ("GET", few),
        ("HGETALL", keys.of_flow(request_id)),
        ("SCARD", keys.unique_ids(request_id)),
        ("HGETALL", errors),
    ]


def compare(book: Book, request_id: str, replies: list[Any]) -> None:
    """Raises Disagreement unless Redis holds what the model holds."""
    values = unpacked({name.decode(): value.decode() for name, value in replies[0].items()})
    request = book.requests.get(request_id)
    if request is None:
        seen = book.abandoned.get(request_id)
        marker = {"state": "abandoned", "seen": str(seen[0])} if seen else {}
        agree(values, marker, f"{request_id}, which does not exist")
        return
    _compare_hash(request, values)
    _compare_results(request, replies[8], replies[9], replies[13])
    if request.handed.strip("0,-"):  # else parts of a former life may be left
        agree(replies[11], request.parts.fields, "what waits to be joined")
    if request.has_ended:
        agree([len(one) for one in replies[1:4]], [0, 0, 0], "what is left of the permits")
        agree([replies[5], replies[7], replies[10]], [0, None, None], "what is left of the stream")
        return
    if request.options.is_distinct and (request.is_open or request.chunks > 1):
        ids = len(request.subs) if request.is_open else 0
        agree(replies[12], ids, "how many ids there are")
    _compare_permits(request, replies[1], values)
    leases = {int(k): int(score) for k, score in replies[2]}
    agree(leases, {permit.k: permit.deadline for permit in request.held}, "the leases")
    retries = {sub_id: int(due) for sub_id, due in replies[3]}
    agree(retries, {sub.id: sub.due for sub in request.among("waiting")}, "what waits")
    if replies[10] is not None:  # a small request: nothing of it was settled yet
        bodies = b"".join(b"%d:%b" % (len(sub.body), sub.body) for sub in request.subs)
        agree(replies[10], bodies, "the few that wait or are held apart")
        agree([request.left, replies[5], replies[7]], [len(request.subs), 0, None], "their number")
        return
    pending = {sub_id: (who, count) for sub_id, who, _, count in replies[4]}
    agree(pending, _owners(request), "who owes what, and its deliveries")
    consumers = {one[b"name"] for one in replies[6]} - {b"-"}
    agree(consumers, {f"{one.worker}/{one.k}".encode() for one in request.held}, "who is known")
    agree(replies[5], request.left, "the entries of the stream")
    agree(int(replies[7]), request.left + request.is_open, "the counter")


def _compare_hash(request: Request, values: dict[str, str]) -> None:
    expected = {
        "state": request.state,
        "queue": request.options.queue,
        "priority": request.priority,
        "limit": request.limit,
        "total": len(request.subs),
        "done": request.count("done"),
        "dead": request.count("dead"),
        "cancelled": request.count("cancelled"),
        "open": int(request.is_open),
        "chunks": request.chunks,
        "chain": request.chain,
        "timeouts": request.timeouts,
        "failures": request.failures,
        "repeated": request.last_repeated,
        "reason": request.reason,
        "born": request.born,
        "ended": request.ended,
        "deadline": request.deadline,
        "reopened": request.reopened,
        "left_out": request.keys.left_out,
        "turn": request.turn,
        "handed": request.handed,
        "passed": len(request.parts.passed),
    }
    words = {"state", "queue", "chain", "reason", "turn", "handed"}
    found = {
        name: values.get(name, "") if name in words else int(values.get(name, 0))
        for name in expected
    }
    agree(found, expected, "the request")


def _compare_permits(request: Request, fields: dict[bytes, bytes], values: dict[str, str]) -> None:
    found: dict[int, tuple[Any, ...]] = {}
    if (values["seq"], values["queued"]) == ("1", "1"):  # the first permit has no field yet
        lane = int(values["priority"]) + 100 * int(values["shards"].partition(",")[0] or 0)
        found[0] = ("queued", 1, int(values["born"]), lane, 0)
    for name, text in fields.items():
        kind, _, rest = text.decode().partition(":")
        if name.isdigit() and kind == "q":
            found[int(name)] = ("queued", *map(int, rest.split(":")))
        elif name.isdigit() and kind == "h":
            fence, g, op, started, _, _, _, _, worker = rest.split(":", 8)
            found[int(name)] = ("held", int(fence), int(g), op, started, worker)
    expected: dict[int, tuple[Any, ...]] = {}
    for permit in request.permits.values():
        if permit.state == "queued":
            expected[permit.k] = ("queued", permit.g, permit.since, permit.lane, permit.due)
        elif permit.state == "held":
            proof = (permit.fence, permit.g, permit.op, permit.started, permit.worker)
            expected[permit.k] = ("held", *proof)
    agree(found, expected, "the permits")


def _owners(request: Request) -> dict[bytes, tuple[bytes, int]]:
    owners = {}
    for sub in request.subs:
        if sub.state == "waiting":
            owners[sub.id] = (b"-", sub.spent)
        elif sub.state == "held":
            who = f"{request.permits[sub.permit].worker}/{sub.permit}"
            owners[sub.id] = (who.encode(), sub.attempt)
    return owners


def _compare_results(
    request: Request, out: list[Any], dead: list[Any], texts: dict[bytes, bytes]
) -> None:
    found = [result for _, fields in out for result in _results(fields, texts)]
    dropped = {sub.index for sub in request.subs if sub.is_dropped}
    expected: list[Result] = []
    for group in request.results:
        start = len(expected)
        # The text of an error may go with its dead sub-request, if no other one has the same.
        expected += sorted(
            one._replace(body=b"") if one.number in dropped and one.status == "x" else one
            for one in group
        )
        found[start : start + len(group)] = sorted(
            one._replace(body=b"") if one.number in dropped and one.status == "x" else one
            for one in found[start : start + len(group)]
        )
    agree(found, expected, "the results")
    buried = {}
    for grave, fields in dead:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        index = int(named[b"head"].partition(b":")[0])
        agree(index in buried, False, f"{index} is dead twice")
        request.subs[index].grave = grave
        buried[index] = (named[b"reason"].decode(), named[b"body"])
    kept = {
        sub.index: (sub.reason, sub.body)
        for sub in request.subs
        if sub.state == "dead" and not sub.is_dropped
    }
    agree(buried, kept, "the dead")
    if texts:
        size = sum(len(text) for name, text in texts.items() if len(name) == _DIGEST)
        agree(int(texts[b"bytes"]), size, "the bytes of all texts of errors")


def _results(fields: list[bytes], texts: dict[bytes, bytes]) -> list[Result]:
    worker = fields[1].decode()
    found = []
    for head, body in zip(fields[2::2], fields[3::2], strict=True):
        index, status, attempt, _, _ = head.decode().split(":")
        shown = texts.get(body, b"") if status == "x" else body
        found.append(Result(int(index), status, int(attempt), worker, shown))
    return found
