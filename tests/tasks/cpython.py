"""Runs CPython's own tests of executors on ours: `python -m tests.tasks.cpython`.

They call functions such as `time.sleep` and `pow`. Here these are tasks, which a worker of this
module's app has. The tests run in a process of their own, because they wait for its children.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import threading
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import test  # type: ignore[import-not-found]

from fairlane import App, Executor
from fairlane.tasks.executor import CallFuture
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future as AnyFuture

    from fairlane.records import Progress

_MODULE = "tests.tasks.cpython"
ROOT = Path(__file__).parents[2]
_PACKAGE = "test.test_concurrent_futures"
_PARTS = ("", ".util", ".executor", ".test_wait", ".test_as_completed", ".test_future",
          ".test_shutdown")  # fmt: skip  # one module until Python 3.11
_TESTS = ("WaitTests", "AsCompletedTests", "ExecutorTest", "ExecutorShutdownTest", "FutureTests")
# Debian packages the tests of its Python apart from it; other builds may leave them out.
_SYSTEM = Path(f"/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}/test")

if _SYSTEM.is_dir() and str(_SYSTEM) not in test.__path__:  # also in programs that a test starts
    test.__path__.append(str(_SYSTEM))

app = App("cpython")


@dataclass
class Made:
    """Replaces an object of a class without fields."""


def _pause(seconds: float) -> None:
    """Lets a call last as long as CPython's test wants it to last."""
    threading.Event().wait(seconds)


@app.task
def sleep(seconds: float) -> None:
    _pause(seconds)


@app.task(name="pow")
def power(base: int, exponent: int) -> int:
    return int(pow(base, exponent))


@app.task(name="divmod")
def divide(number: int, by: int) -> tuple[int, int]:
    return divmod(number, by)


@app.task(name="abs")
def absolute(number: int) -> int:
    return abs(number)


@app.task(name="str")
def text(number: int) -> str:
    return str(number)


@app.task(name="id")
def identity(given: None) -> int:
    return id(given)


@app.task
def mul(x: int, y: int) -> int:
    return x * y


@app.task
def capture(*args: int, **kwargs: int) -> tuple[tuple[int, ...], dict[str, int]]:
    return args, kwargs


@app.task
def sleep_and_raise(seconds: float) -> None:
    _pause(seconds)
    raise Exception("this is an exception")  # noqa: TRY002  the test's own words


@app.task
def sleep_and_print(seconds: float, message: str) -> str:
    _pause(seconds)
    return message


@app.task
def make_dummy_object(_number: int) -> Made:
    return Made()


class Future(CallFuture):
    """The future of a call, under the name that a test expects in its text."""


class OnWorkers(Executor):
    """An executor that calls the task of a function's name."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(app, max_workers, attempts=1)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: AnyFuture[Any] = super().submit(_task_of(fn), *args, **kwargs)
        if fn.__name__ == "sleep_and_print":  # what a worker prints is not in this process's output
            future.add_done_callback(lambda ended: _print(ended.result()))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:  # a thread begins a call immediately, a worker needs a moment
            wait_until(lambda: any(one.held or one.done for one in _progress()))
        super().shutdown(wait, cancel_futures=cancel_futures)

    def map(self, fn: Any, *iterables: Any, **options: Any) -> Iterator[Any]:
        return super().map(_task_of(fn), *iterables, **options)


def _progress() -> list[Progress]:
    queue = app.queue
    return [queue.request(one.id).progress() for one in queue.status().requests]


def _task_of(function: Any) -> Any:
    return app.tasks.get(getattr(function, "__name__", ""), function)


def load() -> dict[str, Any]:
    """Returns what CPython's tests of executors define. Raises ImportError if there are none."""
    found: dict[str, Any] = {}
    for part in _PARTS:
        with contextlib.suppress(ModuleNotFoundError):
            found.update(vars(importlib.import_module(_PACKAGE + part)))
    if missing := [name for name in (*_TESTS, "ExecutorMixin") if name not in found]:
        raise ImportError(f"Python {sys.version.split()[0]} comes without {missing[0]}")
    return found


def cases(found: dict[str, Any]) -> Iterator[unittest.TestCase]:
    """Yields CPython's tests, with our executor in place of those of CPython."""

    def assert_python_ok(*args: str) -> Any:
        ours = f"from {_MODULE} import OnWorkers"
        code = args[-1].replace("from concurrent.futures import OnWorkers", ours)
        script: Any = importlib.import_module("test.support.script_helper")
        return script.assert_python_ok(*args[:-1], code, PYTHONPATH=os.environ["PYTHONPATH"])

    for name in _TESTS:
        tests = found[name]
        for part in _PARTS:
            module: Any = sys.modules.get(_PACKAGE + part)
            if module is not None:
                module.Future, module.assert_python_ok = Future, assert_python_ok
        bases = (tests,) if name == "FutureTests" else (
            tests, found["ExecutorMixin"], found["BaseTestCase"],
        )  # fmt: skip
        made = type(name, bases, {"executor_type": OnWorkers})
        yield from unittest.defaultTestLoader.loadTestsFromTestCase(made)  # type: ignore[misc]


class _Noted(unittest.TestResult):
    """Keeps why each test failed, "" if it passed."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  unittest's name
        super().startTest(test)
        self.outcomes[_name(test)] = ""

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802  unittest's name
        super().addFailure(test, err)
        self.outcomes[_name(test)] = f"{err[0].__name__}: {err[1]}"

    addError = addFailure  # noqa: N815  unittest's name

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802  unittest's name
        super().addSkip(test, reason)
        self.outcomes[_name(test)] = f"skipped: {reason}"


def _name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test.id().rpartition('.')[2]}"


def quick_calls_then_a_map_with_a_timeout(found: dict[str, Any]) -> Callable[[], None]:
    """Returns a test: quick calls before it must not make workers take a slow call with others."""
    made: Any = type(
        "AfterQuickCalls",
        (found["ExecutorTest"], found["ExecutorMixin"], found["BaseTestCase"]),
        {"executor_type": OnWorkers},
    )

    def run() -> None:
        with OnWorkers(5) as executor:
            assert list(executor.map(abs, range(-100, 0))) == list(range(100, 0, -1))
        result = unittest.TestResult()
        made("test_map_timeout").run(result)
        assert result.wasSuccessful(), result.failures or result.errors

    return run


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Prints as JSON why each test failed, or why there are none."""
    sys.modules.setdefault(_MODULE, sys.modules["__main__"])
    try:
        found = load()
    except ImportError as error:
        _print(json.dumps({"": str(error)}))
        return
    noted = _Noted()
    with contextlib.redirect_stdout(io.StringIO()):
        if sys.argv[1:] == ["quick"]:
            case = unittest.FunctionTestCase(quick_calls_then_a_map_with_a_timeout(found))
            case.run(noted)
        else:
            unittest.TestSuite(cases(found)).run(noted)
    noted.outcomes["altered"] = str(found["support"].environment_altered or "")
    _print(json.dumps(noted.outcomes))


if __name__ == "__main__":
    main()
