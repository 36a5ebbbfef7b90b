"""A worker: a supervisor that keeps leases alive, and processes that run the handler."""

from __future__ import annotations

from .handlers import Context, batch_handler, time_limit
from .raised import Reject, Retry
from .supervisor import Worker

__all__ = ["Context", "Reject", "Retry", "Worker", "batch_handler", "time_limit"]
