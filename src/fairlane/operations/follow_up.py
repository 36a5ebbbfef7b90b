"""What a reply asks its caller to do next: dispatch the tokens, or log the end of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.tokens import Ending, Minted, insert_tokens, retire_all

if TYPE_CHECKING:
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call


def follow_up(queue: str, *replies: tuple[str, Reply]) -> list[Call[Any]]:
    """Returns the calls that follow these replies, each given with its request.

    An `ended` moves its request into the completion log; the tokens of any other are dispatched.
    """
    minted, ended = list[Minted](), list[Ending]()
    for request_id, reply in replies:
        if reply.is_ended:
            ended.append((request_id, reply.summary))
        elif reply.has_tokens and (tokens := reply.tokens):
            minted.append((request_id, tokens))
    return [*insert_tokens(queue, minted), *retire_all(queue, ended)]
