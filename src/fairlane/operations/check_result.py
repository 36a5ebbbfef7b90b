"""The result of a check: what it found, how bad that is, and what repairs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


OK, NOTE, WARN, BAD = "ok", "note", "warn", "bad"
PAGE = "docs/how-to/watch/at-night.md"  # what a person sees, and the commands to cause and cure
SECTIONS = {
    "a-bad-deployment": ("failures", "retries"),
    "a-body-that-kills-its-worker": ("deaths",),
    "redis-is-full": ("memory", "retention"),
    "redis-lost-its-data": (
        *("restart", "servers", "persistence", "endings", "no request", "forgotten", "unlogged"),
        *("unsound", "lost tokens", "orphan"),
    ),
    "a-queue-that-grows": ("backlog",),
    "a-worker-that-flaps": ("flapping", "late"),
    "no-worker": ("workers", "upkeep"),
    "a-customer-who-floods": ("tenants",),
    "a-limit-by-key-that-is-full": ("keys",),
    "an-order-that-is-stopped": ("orders",),
    "a-schedule-that-missed-its-ticks": ("schedules",),
    "a-webhook-that-is-not-delivered": ("webhooks",),
}
_SECTION_OF = {check: section for section, checks in SECTIONS.items() for check in checks}


@dataclass(slots=True)
class Finding:
    """The result of one check. `what` is a sentence without its subject; `subject` may name that.

    `severity` is ok, note (harmless), warn (can wait) or bad (needs a repair or a person). `remedy`
    describes what `repair` does, or what a person must do if there is no repair.
    """

    check: str
    severity: str
    what: str
    remedy: str = ""
    subject: str = ""  # a request, a key or a lane
    repair: Callable[[], Awaitable[Any]] | None = None
    is_fixed: bool = False

    @property
    def is_left(self) -> bool:
        """Returns True if the finding still needs a repair or a person."""
        return self.severity == BAD and not self.is_fixed

    @property
    def see(self) -> str:
        """Returns the page and the section about such a finding; "" if it is ok, or has none."""
        section = _SECTION_OF.get(self.check, "")
        return f"{PAGE}#{section}" if section and self.severity != OK else ""

    async def apply(self) -> None:
        """Runs the repair; if that is refused, the error becomes the remedy.

        Raises RedisUnreachable. A repair may run twice, and while workers do the same.
        """
        if self.repair is None:
            return
        repair, self.repair = self.repair, None
        try:
            await repair()
        except RedisUnreachable:
            raise
        except FairlaneError as error:
            self.remedy = f"the repair failed: {error}"
            return
        self.is_fixed = True
