"""Whether the streams' blocks fit the requests of a queue. Only read, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import keys
from ..errors import FairlaneError
from ..steps import At, Command
from .doctor_server import WARN, Check
from .together import each

if TYPE_CHECKING:
    from ..steps import Operation

GOOD_BYTES = 2048  # docs/sizing.md says why
_MOST = 500  # requests looked at
_MANY = 100  # of them small
_SMALL = 20  # sub-requests


def judge_sizes(queue: str, node: Any) -> Operation[list[Check]]:
    """Advice where many requests pay for more than they hold; `node` is asked for its setting."""
    name = b"stream-node-max-bytes"
    try:
        _, size = yield At(node, Command(b"CONFIG", b"GET", name))
    except (FairlaneError, ValueError):  # not readable
        return []
    if int(size) <= GOOD_BYTES:
        return []
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, _MOST - 1)
    streams = [keys.request_keys(one.decode("utf-8", "replace"))[0] for one in ids]
    lengths = yield from each([Command(b"XLEN", stream) for stream in streams])
    found = sum(isinstance(length, int) and 0 < length <= _SMALL for length in lengths)
    if found < _MANY:
        return []
    what = (
        f"{found} of {len(ids)} requests have at most {_SMALL} sub-requests in a stream, "
        f"which sets {int(size) // 1024} KiB aside for them, and as much again for their results"
    )
    mend = f"CONFIG SET stream-node-max-bytes {GOOD_BYTES}, and in redis.conf"
    return [Check("small requests", WARN, what, mend)]
