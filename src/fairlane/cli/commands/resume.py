"""`fairlane resume`: a paused request goes on."""

from __future__ import annotations

from fairlane.cli.commands.pause import switch

command = switch(
    "resume", "active", "Let a paused request go on.", "Let the paused request ID go on"
)
