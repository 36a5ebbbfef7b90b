"""What the hash of a step's request has: its place in the flow, and what it is fed with."""

from __future__ import annotations

from typing import NamedTuple

from fairlane.errors import InvalidArgument

# What is handed over: results; the bodies of dead sub-requests; or the results of several requests,
# one of each, put together as they are (join) or as values of a JSON array (array); or all results
# of one request together (gather).
DONE, DEAD, JOIN, ARRAY, GATHER = "done", "dead", "join", "array", "gather"
JOINING = frozenset({JOIN, ARRAY, GATHER})
_KINDS = frozenset({DONE, DEAD, *JOINING})
_NOTHING = "-"


class Wrap(NamedTuple):
    """What is written around each result to make a body of the next step.

    `none` is the result None, and where results are joined also a dead one. `between` stands
    between results that are joined.
    """

    before: bytes
    after: bytes
    none: bytes
    between: bytes = b""

    def body(self, result: bytes | None) -> bytes:
        """Returns the body of the next step for this result."""
        return self.before + (self.none if result is None else result) + self.after


PLAIN = Wrap(b"", b"", b"")  # a result is the next body as it is; None is an empty one
JSON_ARRAY = Wrap(b"[", b"]", b"null", b",")


class Place(NamedTuple):
    """The place of a step in its flow. Steps are counted from 1."""

    flow: str
    number: int
    steps: int
    step: str

    @property
    def text(self) -> str:
        """Returns the field `flow` of the request's hash."""
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Returns the place in such a field; None for a request that is no step."""
        match text.split(" "):
            case [flow, number, steps, step] if number.isdecimal() and steps.isdecimal():
                return cls(flow, int(number), int(steps), step)
        return None


class Feed(NamedTuple):
    """What an open request is fed with: the results, or the dead, of other requests.

    `stops`: for each of them, whether a dead sub-request cancels the flow. `bound`: the request
    that joins this one with its siblings; this one must not be far ahead of it. `width`: how many
    results make one body.
    """

    kind: str
    sources: tuple[str, ...]
    stops: tuple[bool, ...]
    wrap: Wrap = PLAIN
    bound: str = ""
    width: int = 1

    @property
    def text(self) -> str:
        """Returns the field `feed` of the request's hash."""
        stops = ",".join("stop" if one else "continue" for one in self.stops)
        words = [self.kind, ",".join(self.sources), stops, self.bound or _NOTHING, str(self.width)]
        if self.wrap != PLAIN:
            words.append(".".join(part.hex() for part in self.wrap))
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Feed | None:
        """Returns what such a field describes; None for a request that is not fed.

        Raises InvalidArgument for damage.
        """
        if not text:
            return None
        try:
            kind, sources, stops, bound, width, *wrap = text.split(" ")
            parts = Wrap(*map(bytes.fromhex, wrap[0].split("."))) if wrap else PLAIN
            names, each = tuple(sources.split(",")), tuple(stops.split(","))
            count = int(width)
        except (TypeError, ValueError):
            kind, names, each = "", (), ()
        if kind not in _KINDS or len(names) != len(each):
            raise InvalidArgument(f"feed {text!r} of a step is damaged: cancel its request")
        return cls(
            kind,
            names,
            tuple(one == "stop" for one in each),
            parts,
            "" if bound == _NOTHING else bound,
            count,
        )


def request_of(run: str, number: int) -> str:
    """Returns the id of the request of a step."""
    return f"{run}.{number}"


def run_of(request_id: str) -> str:
    """Returns the flow's run that a step's request belongs to."""
    return request_id.rpartition(".")[0]
