"""A test that is one loop over many things: files, scripts, links."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def for_each(
    name: str, values: Iterable[Any], label: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test once for all `values` of its parameter `name`, and reports each that fails.

    The number of tests counts behaviours, so a rule that holds for each script is one test.
    """
    every = list(values)
    assert every, f"a loop over no {name} cannot fail"

    def loop(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = []
            for value in every:
                try:
                    test(**fixtures, **{name: value})
                except AssertionError as error:
                    failed.append(f"{label(value)}: {error}")
            assert not failed, "\n".join(failed)

        signature = inspect.signature(test)
        rest = [one for one in signature.parameters.values() if one.name != name]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return loop
