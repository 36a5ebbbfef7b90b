"""`fairlane resume`: a paused request goes on."""

from __future__ import annotations

from fairlane.cli.commands.pause import switch

command = switch(
    "resume", "active", "Let paused requests go on.", "Let the paused request ID go on"
)
