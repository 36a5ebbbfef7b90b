"""Where a page of rows begins, and how many rows it has."""

from __future__ import annotations

from typing import Annotated

import msgspec

Rows = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class After(msgspec.Struct, forbid_unknown_fields=True):
    """Where a page begins: the `after` of the page before."""

    after: str = ""


class Paging(After, forbid_unknown_fields=True):
    """A page of at most `limit` rows."""

    limit: Rows = 100


class Limit(msgspec.Struct, forbid_unknown_fields=True):
    """The most rows of the answer."""

    limit: Rows = 100
