"""A worker: a supervisor that keeps leases alive, and processes that run the handler."""

from __future__ import annotations

from fairlane.worker.errors import Reject, Retry
from fairlane.worker.handlers import Context, batch_handler, time_limit
from fairlane.worker.supervisor import Worker

__all__ = ["Context", "Reject", "Retry", "Worker", "batch_handler", "time_limit"]
