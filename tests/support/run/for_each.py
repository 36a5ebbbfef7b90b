"""A test that is one loop over many things: files, scripts, links, arguments."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.program import Program
from tests.support.run.teardown import check_world
from tests.support.scripts.requests import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# With one of these a test uses the server, which each value finds empty.
OF_THE_SERVER = {"driver", "lane", "queue", "redis_client", "redis_url", "program", "one"}


def for_each(
    name: str, values: Iterable[Any], label: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test once for all `values` of its parameter `name`, and reports each that fails.

    Several parameters are `a, b`, and then a value is a tuple. The number of tests counts
    behaviours, so a rule that holds for each script is one test. Each value finds the usual
    fixtures as a test of its own would: an empty server, an empty folder, nothing patched.
    """
    every = list(values)
    assert every, f"a loop over no {name} cannot fail"
    names = [one.strip() for one in name.split(",") if one.strip()]

    def loop(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        rest = [one for one in signature.parameters.values() if one.name not in names]
        uses_server = not OF_THE_SERVER.isdisjoint(one.name for one in rest)
        is_added = uses_server and "redis_client" not in signature.parameters
        if is_added:
            rest.append(inspect.Parameter("redis_client", inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            client = fixtures.get("redis_client")
            if is_added:
                del fixtures["redis_client"]
            first = {name: copied(one) for name, one in fixtures.items()}
            failed = []
            for at, value in enumerate(every):
                given = dict(zip(names, value, strict=True)) if len(names) > 1 else {name: value}
                try:
                    with renewed(first, at, client) as fresh:
                        test(**fresh, **given)
                except pytest.skip.Exception as error:
                    if at == 0:
                        raise
                    failed.append(f"{label(value)}: skipped alone: {error}")
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all are reported
                    failed.append(f"{label(value)}: {type(error).__name__}: {error}")
            assert not failed, "\n".join(failed)

        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return loop


def copied(one: Any) -> Any:
    """Returns a copy of a lane, which remembers what it has called, and anything else itself."""
    return copy.copy(one) if isinstance(one, Lane) else one


@contextlib.contextmanager
def renewed(fixtures: dict[str, Any], at: int, client: Any) -> Iterator[dict[str, Any]]:
    """Yields the fixtures for the value `at` of a loop; then checks and empties the server."""
    fresh = dict(fixtures)
    with contextlib.ExitStack() as later:
        for name, one in fixtures.items():
            if isinstance(one, pytest.MonkeyPatch):
                fresh[name] = later.enter_context(pytest.MonkeyPatch.context())
            elif isinstance(one, pytest.LogCaptureFixture):
                one.clear()
            elif name == "tmp_path":
                fresh[name] = one / str(at)
                fresh[name].mkdir()
            elif isinstance(one, Program):
                folder = one.folder / str(at)
                folder.mkdir()
                fresh[name] = Program(folder, one.env.get("FAIRLANE_REDIS"))
            else:
                fresh[name] = copied(one)
        try:
            yield fresh
            if client is not None:
                check_world(client)
        finally:
            if client is not None:
                client.flushall()
