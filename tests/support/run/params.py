"""Splits test parameters: `make test` runs some of them, and `make test-rest` the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def rest_but(now: int, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Returns rows as parameters: the first `now` as they are, the others marked `rest`."""
    return [
        pytest.param(*row, marks=pytest.mark.rest if at >= now else ())
        for at, row in enumerate(rows)
    ]
