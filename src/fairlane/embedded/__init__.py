"""The embedded server: one private Redis per user, started when somebody first needs it.

``programs`` finds a server to run, ``place`` knows its folders, ``data`` which of them it may
serve, and ``server`` starts, asks and stops it.
"""

from __future__ import annotations

from .place import is_first_use_today
from .programs import ServerBinary, find_server
from .server import ServerStatus, ensure, status, stop

__all__ = [
    "ServerBinary",
    "ServerStatus",
    "ensure",
    "find_server",
    "is_first_use_today",
    "status",
    "stop",
]
