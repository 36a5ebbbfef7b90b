"""Where this worker runs: on which machine, since which boot, and in which network namespace.

Two containers may have the same hostname, and each has a loopback interface of its own. So a
refused port at a loopback address proves a death only if all three are equal.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
from pathlib import Path

from fairlane.drivers import urls
from fairlane.worker.health_port import split_id

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")  # a link to `net:[<number>]`, unique since the boot
_UNKNOWN = secrets.token_hex(8)  # differs from that of every other worker


def whereabouts() -> str:
    """Returns `<hostname> <boot id> <network namespace>`; not on Linux, only the hostname."""
    hostname = socket.gethostname()
    if sys.platform != "linux":
        return hostname
    try:
        return f"{hostname} {_BOOT_ID.read_text().strip()} {_NETWORK.readlink()}"
    except OSError:
        return f"{hostname} {_UNKNOWN}"


def hostname_of(place: str) -> str:
    """Returns the hostname of what `whereabouts` returned, for people."""
    return place.partition(" ")[0]


def is_loopback(worker: str) -> bool:
    """Returns True if the address in a worker's id means a different worker on each machine.

    A hostname may have such an address, too: many systems give their own name to 127.0.1.1. Raises
    OSError for a name that is unknown, InvalidArgument.
    """
    host, port = split_id(worker)
    found = [ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, port)]
    return any(address.is_loopback or address.is_unspecified for address in found)


def address_towards(url: str) -> str:
    """Returns the address of this machine in Redis's network. Sends nothing."""
    target = urls.read(url)
    host, port = "127.0.0.1", 6379
    if target.hosts:
        host, port = target.hosts[0]
    elif not target.rest.startswith("unix"):
        from urllib.parse import urlsplit

        parts = urlsplit(target.rest)
        host, port = parts.hostname or host, parts.port or port
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def full_id(worker: str | None, url: str) -> str:
    """Returns a worker's id with a host: `:7101` gets the address of this machine towards Redis."""
    if worker is None:
        return "127.0.0.1:0"
    is_port = isinstance(worker, str) and worker[:1] == ":" and worker[1:].isdigit()
    return f"{address_towards(url)}{worker}" if is_port else worker
