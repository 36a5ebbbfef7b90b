"""Reads `URL/list`: a list on a Redis."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from fairlane.drivers import urls
from fairlane.errors import InvalidArgument
from fairlane.protocol.list_keys import check_list


class ListAddress(NamedTuple):
    """A list, and the URL of its Redis."""

    url: str
    name: str

    @property
    def shown(self) -> str:
        """Returns `URL/list` without the password."""
        return f"{urls.hide_secret(self.url)}/{self.name}"

    @property
    def database(self) -> int:
        """Returns the number of the database."""
        target = urls.read(self.url)
        last = target.rest.rstrip("/").rpartition("/")[2]
        if "db" in target.options:
            return int(target.options["db"])
        return int(last) if last.isdigit() else 0


def list_address(option: str, text: str) -> ListAddress:
    """Reads `redis://host:6379/0/orders`: the last part of the path is the list.

    A slash in a list's name is %2F. Raises InvalidArgument, which shows no password.
    """
    rest, mark, query = text.partition("?")
    scheme, separator, path = rest.partition("://")
    url, slash, name = path.rpartition("/")
    if not separator or not slash or not name or not url:
        raise InvalidArgument(
            f"{option} names no list: write the list behind the URL, as in "
            "redis://host:6379/0/orders"
        )
    if name.isdigit() and "/" not in url and "+" not in scheme:
        raise InvalidArgument(
            f"{option} ends in the number {name}, and names no list: write the list behind it, as "
            f"in /{name}/orders"
        )
    url = f"{scheme}://{url}{mark}{query}"
    urls.read(url)
    return ListAddress(url, check_list(f"{option} list", unquote(name, errors="surrogateescape")))
