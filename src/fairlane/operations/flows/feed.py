"""What the hash of a step's request has: its place in the flow, and what it is fed with."""

from __future__ import annotations

from typing import NamedTuple

from fairlane.errors import InvalidArgument

DONE, DEAD = "done", "dead"  # what is handed over: results, or the bodies of dead sub-requests


class Wrap(NamedTuple):
    """What is written around each result to make it the body of a task; `none` is that of None."""

    before: bytes
    after: bytes
    none: bytes

    def body(self, result: bytes | None) -> bytes:
        """Returns the body of the next step for this result."""
        return self.before + (self.none if result is None else result) + self.after


PLAIN = Wrap(b"", b"", b"")  # a result is the next body as it is; None is an empty one


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
    """What an open request is fed with: the results, or the dead, of another request.

    `stops`: the flow is cancelled if the other request has a dead sub-request.
    """

    kind: str
    source: str
    stops: bool = False
    wrap: Wrap = PLAIN

    @property
    def text(self) -> str:
        """Returns the field `feed` of the request's hash."""
        words = [self.kind, self.source, "stop" if self.stops else "continue"]
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
            kind, source, stops, *wrap = text.split(" ")
            parts = Wrap(*map(bytes.fromhex, wrap[0].split("."))) if wrap else PLAIN
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"feed {text!r} of a step is damaged: cancel its request"
            ) from None
        return cls(kind, source, stops == "stop", parts)


def request_of(run: str, number: int) -> str:
    """Returns the id of the request of a step."""
    return f"{run}.{number}"


def run_of(request_id: str) -> str:
    """Returns the flow's run that a step's request belongs to."""
    return request_id.rpartition(".")[0]
