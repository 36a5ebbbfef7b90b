"""A test network: namespaces on a bridge, whose links are cut one way or both.

Each place of a lab is a network namespace with an address of its own; a process, or a thread, is
in one of them. A cut is like a broken wire: packets are sent to a hardware address that
no place has. It holds from one place to another, so it may be made one way, and for any pair.

    with make_lab(["a", "b"]) as lab:
        lab.cut(["a"], ["b"])          # neither reaches the other
        lab.cut(["a"], ["b"], "out")   # a does not reach b
        lab.unplug("a")                # no packet leaves a or reaches it

It needs Linux, iproute2, and the right to make namespaces (root); `why_not` names what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NETWORK = "198.18"  # for measurements of networks (RFC 2544): not in use
NAMED = Path("/run/netns")
WAYS = ("both", "out", "in")
_CLONE_NEWNET = 0x40000000
_NO_MAC = "02:66:6c:ff:ff:ff"
_PREFIX = "fl"
_PACKET_S = 0.2
_CALLS = 3
_labs = count()


def _ip(*words: str, lines: Iterable[str] = ()) -> str:
    """Runs the program ip; `lines` are many commands in one call. Raises CalledProcessError."""
    given = "".join(f"{line}\n" for line in lines)
    words = (*words, "-batch", "-") if given else words
    done = subprocess.run(["ip", *words], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, ["ip", *words], done.stdout, done.stderr
        )
    return done.stdout


def why_not() -> str:
    """Returns why a lab is not possible here; "" if it is possible."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if shutil.which("ip") is None:
        return "the program `ip` is missing: install iproute2"
    if os.geteuid() != 0:
        return "network namespaces are root's to make"
    name = f"{_PREFIX}{os.getpid():x}-try"
    try:
        _ip("netns", "add", name)
        try:
            kinds = [
                "link add name lab0 type veth peer name lab1",
                "link add name lab2 type bridge",
            ]
            _ip("-n", name, lines=kinds)
        finally:
            _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"this machine allows no network namespaces: {error.stderr.strip()}"
    return ""


@dataclass(frozen=True)
class Place:
    """One namespace, or this machine itself (`space` is empty)."""

    name: str
    space: str
    host: str
    mac: str
    device: str

    @property
    def before(self) -> list[str]:
        """Returns the words that begin a command line which runs in this place."""
        return ["ip", "netns", "exec", self.space] if self.space else []

    def enter(self) -> None:
        """Moves this thread into the place: from now on it connects from there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (NAMED / self.space).open("rb") as space:
            if libc.setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"can't enter {self.space}")

    def run_ip(self, *words: str, lines: Iterable[str] = ()) -> None:
        _ip(*(["-n", self.space] if self.space else []), *words, lines=lines)


@dataclass
class Lab:
    """Places that reach each other, except where links are cut."""

    tag: str
    places: dict[str, Place] = field(default_factory=dict)
    hub: str = ""

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    def cut(self, some: Sequence[str], others: Sequence[str], ways: str = "both") -> None:
        """Lets no packet from `some` reach `others` ("out"), or the reverse ("in"), or both."""
        self._set(some, others, ways, is_cut=True)

    def heal(self, some: Sequence[str], others: Sequence[str]) -> None:
        self._set(some, others, "both", is_cut=False)

    def unplug(self, name: str) -> None:
        """Cuts all links of a place, as if its cable were pulled."""
        _ip("-n", self.hub, "link", "set", self[name].device, "down")

    def plug(self, name: str) -> None:
        _ip("-n", self.hub, "link", "set", self[name].device, "up")

    def others(self, some: Iterable[str]) -> list[str]:
        """Returns every place except these and this machine itself, which observes."""
        return [name for name in self.places if name not in {*some, "here"}]

    def reaches(self, receiver: str, sender: str) -> bool:
        """Returns True if a packet gets from the sender to the receiver, without any answer."""
        with self._ear(receiver) as ear, self._ear(sender) as mouth:
            for _ in range(_CALLS):
                mouth.sendto(b"?", ear.getsockname())
                with contextlib.suppress(TimeoutError):
                    return bool(ear.recvfrom(16)[1] == mouth.getsockname())
        return False

    def _ear(self, name: str) -> socket.socket:
        """Opens a socket for single packets; it stays in the place where it was made."""
        place = self[name]

        def make() -> socket.socket:
            if place.space:
                place.enter()
            ear = socket.socket(type=socket.SOCK_DGRAM)
            ear.bind((place.host, 0))
            ear.settimeout(_PACKET_S)
            return ear

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(make).result()

    def _set(self, some: Sequence[str], others: Sequence[str], ways: str, *, is_cut: bool) -> None:
        lines: dict[str, list[str]] = {}
        for one in some:
            for other in others:
                if ways in {"both", "out"}:
                    lines.setdefault(one, []).append(self._neighbour(other, is_cut=is_cut))
                if ways in {"both", "in"}:
                    lines.setdefault(other, []).append(self._neighbour(one, is_cut=is_cut))
        for name, commands in lines.items():
            self[name].run_ip(lines=[text.format(device=_device(self[name])) for text in commands])

    def _neighbour(self, name: str, *, is_cut: bool) -> str:
        """Returns the command that sets where packets for a place are sent."""
        place = self[name]
        mac = _NO_MAC if is_cut else place.mac
        return f"neigh replace {place.host} lladdr {mac} dev {{device}} nud permanent"


def _device(place: Place) -> str:
    return "eth0" if place.space else place.device


@contextlib.contextmanager
def make_lab(names: Sequence[str]) -> Iterator[Lab]:
    """Makes a lab of these places; this machine itself is "here" and reaches all of them."""
    _forget_the_dead()
    number = next(_labs)
    tag = f"{_PREFIX}{os.getpid():x}{chr(97 + number % 26)}"
    lab = Lab(tag, hub=f"{tag}-hub")
    net = f"{NETWORK}.{os.getpid() % 250}"
    try:
        _ip("netns", "add", lab.hub)
        _ip("-n", lab.hub, lines=["link add name hub0 type bridge", "link set hub0 up"])
        for at, name in enumerate(["here", *names], 1):
            space = "" if name == "here" else f"{tag}-{name}"
            mac = f"02:66:6c:{number % 256:02x}:{at // 256:02x}:{at % 256:02x}"
            lab.places[name] = Place(name, space, f"{net}.{at}", mac, f"{tag}{at}")
        for place in lab.places.values():
            _connect(lab, place)
        lab.heal(list(lab.places), list(lab.places))
        yield lab
    finally:
        _remove(tag)


def _connect(lab: Lab, place: Place) -> None:
    """Connects the place to the bridge."""
    if place.space:
        _ip("netns", "add", place.space)
    inside, outside = _device(place), f"{place.device}h" if not place.space else place.device
    home = f" netns {place.space}" if place.space else ""
    peer = f"link add name {outside} netns {lab.hub} type veth peer name {inside}{home}"
    _ip(*f"{peer} address {place.mac}".split())
    _ip("-n", lab.hub, lines=[f"link set {outside} master hub0", f"link set {outside} up"])
    place.run_ip(
        lines=[
            f"address add {place.host}/24 dev {inside}",
            f"link set {inside} up",
            "link set lo up",
        ]
    )


def _forget_the_dead() -> None:
    """Removes the namespaces that a killed run has left."""
    for space in _spaces():
        pid = space[len(_PREFIX) :].partition("-")[0][:-1]
        with contextlib.suppress(ValueError):
            if not Path(f"/proc/{int(pid, 16)}").exists():
                _remove(space.partition("-")[0])


def _spaces() -> list[str]:
    if not NAMED.is_dir():
        return []
    found = [path.name for path in NAMED.iterdir()]
    return [name for name in found if name.startswith(_PREFIX) and "-" in name]


def _remove(tag: str) -> None:
    """Removes the namespaces of a lab; with the namespace of the bridge, every cable is removed."""
    for space in _spaces():
        if space.partition("-")[0] == tag:
            _ip("netns", "del", space)
    wait_until(lambda: not list(Path("/sys/class/net").glob(f"{tag}*")), why="the cables are gone")
