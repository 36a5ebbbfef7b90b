"""Asks the worker of this container for its health; the container's HEALTHCHECK.

Exit code 0: the worker's beats reach Redis. 1: they do not, or there is no worker. The port is that
of FAIRLANE_WORKER_ID, and the address is the one on which the worker listens.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

LISTENS = "0A"
ANSWER_S = 3.0


def address_of(port: int, table: str) -> str:
    """Returns the IPv4 address that has a listener at this port; "" for none."""
    for line in table.splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, _, number = local.partition(":")
        if state == LISTENS and int(number, 16) == port:
            return socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder))
    return ""


def main() -> int:
    """Returns the exit code."""
    port = int(os.environ.get("FAIRLANE_WORKER_ID", ":7101").rpartition(":")[2])
    address = address_of(port, Path("/proc/net/tcp").read_text())
    if not address:
        print(f"no worker listens at port {port}")
        return 1
    try:
        with urlopen(f"http://{address}:{port}/healthz", timeout=ANSWER_S) as answer:
            print(answer.read().decode().strip())
    except (URLError, OSError) as error:
        print(f"the worker at {address}:{port} is not healthy: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
