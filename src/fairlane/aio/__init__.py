"""The asyncio API: the same queue and requests, awaited. `from fairlane.aio import Queue`."""

from fairlane.aio.queue import Queue
from fairlane.aio.request import Opening, OpenRequest, Request

__all__ = ["OpenRequest", "Opening", "Queue", "Request"]
