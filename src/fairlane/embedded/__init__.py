"""The embedded server: one private Redis per user, started at its first use.

``home`` has its folders, and ``server`` finds a server program, starts, asks and stops it.
"""

from __future__ import annotations

from fairlane.embedded.home import is_first_use_today
from fairlane.embedded.server import ServerBinary, ServerStatus, ensure, find_server, status, stop

__all__ = [
    "ServerBinary",
    "ServerStatus",
    "ensure",
    "find_server",
    "is_first_use_today",
    "status",
    "stop",
]
