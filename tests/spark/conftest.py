"""Fixtures: one Spark session for all tests, which are skipped without Java."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.processes import skip_without_java
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Classes and functions of the tests are unpickled on executors, which import `tests`.
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Plans are run once, on few rows: to compile them well would take longer than to run them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need Java: those with a session, and those that start a program."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with a session on one kind of server, unless its own mark names the kinds."""
    named = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if {"spark", "redis_server"} <= {*metafunc.fixturenames} and "redis_server" not in named:
        metafunc.definition.add_marker(
            pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
        )


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Starts a session of two cores, in which a failed Spark task is tried twice again."""
    skip_without_java()
    from pyspark.sql import SparkSession

    from fairlane.spark.data_source import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    builder = SparkSession.builder.master("local[2,3]").appName("tests")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    register(made)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """Clears the active session that an interrupted stream in one test may leave."""
    if "spark" in request.fixturenames:
        from fairlane.spark.data_source import register

        register(request.getfixturevalue("spark"))


@pytest.fixture(scope="module")
def lean(spark: Any) -> Iterator[None]:
    """Speeds up many queries over few rows: each is one plan, and shuffles have one partition."""
    lean = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name) for name in lean}
    for name, value in lean.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def frame(spark: Any) -> Any:
    """Returns rows of two partitions, each of two batches of Arrow, for the format "crashing"."""
    from tests.spark.sink.sinks import COUNT, Crashing, numbers

    spark.dataSource.register(Crashing)
    return numbers(spark, COUNT, 2)
