"""Tests the hints why a server does not answer, after `Redis at ... does not answer`."""

from __future__ import annotations

from fairlane.drivers.error_mapping import why_unanswered
from tests.support.run.for_each import for_each

HINT = "; is it running, and is the URL right?"


@for_each(
    "text, place, why",
    [
        (
            "Error 2 connecting to /r/s. No such file or directory.",
            "unix:///r/s",
            f"No such file or directory{HINT}",
        ),
        (
            "Error 111 connecting to h:1. Connection refused.",
            "redis://h:1",
            f"Connection refused{HINT}",
        ),
        (
            "Error -2 connecting to h:1. Name or service not known.",
            "redis://h:1",
            f"Name or service not known{HINT}",
        ),
        # In a cluster the address is that of a node, which the place does not name.
        (
            "Error 111 connecting to h:2. Connection refused.",
            "redis+cluster://h:1",
            f"Error 111 connecting to h:2. Connection refused{HINT}",
        ),
        ("Timeout reading from h:1", "redis://h:1", "Timeout reading from h:1"),
    ],
)
def test_the_address_is_not_named_twice(text: str, place: str, why: str):
    assert why_unanswered(text, place) == why
