"""A worker: a supervisor that keeps leases alive, and processes that run the handler."""

from __future__ import annotations

from .handlers import Context, batch_handler
from .supervisor import Worker

__all__ = ["Context", "Worker", "batch_handler"]
