"""Tests that the format is registered with a session in every thread of the program."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from fairlane.errors import InvalidArgument
from fairlane.spark import ours, register
from tests.spark.sink.sinks import bodies_in, numbers, rows, write
from tests.support.servers import server_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.rest


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with server_process.run_server() as made:
        yield made


def in_thread(kind: Callable[..., Thread], call: Callable[[], None]) -> None:
    """Runs a call in a thread of its own; raises what the call raised."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  raised in the thread of the test
            errors.append(error)

    thread = kind(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def test_a_thread_without_an_active_session_writes(spark: Any, server: Any):
    """Ctrl-C in a stream leaves a thread without one, too."""
    frame = numbers(spark, 5, 1)
    SparkSession._get_j_spark_session_class(spark._jvm).clearActiveSession()
    write(frame, server.url, request="cleared")
    with server.client() as client:
        assert bodies_in(client, "cleared") == rows(5)


@pytest.mark.parametrize("kind", [Thread, InheritableThread])
def test_any_thread_writes_a_frame(spark: Any, server: Any, kind: Callable[..., Thread]):
    frame, request = numbers(spark, 5, 1), f"by-{kind.__name__}"
    in_thread(kind, lambda: write(frame, server.url, request=request))
    with server.client() as client:
        assert bodies_in(client, request) == rows(5)


def test_any_thread_saves_a_writer_that_another_one_made(spark: Any, server: Any):
    writer = numbers(spark, 5, 1).write.format("fairlane").mode("append")
    writer = writer.options(redis=server.url, request="handed-on")
    in_thread(Thread, writer.save)
    with server.client() as client:
        assert bodies_in(client, "handed-on") == rows(5)


def test_any_thread_starts_a_stream(spark: Any, server: Any, tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\n")
    lines = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "body")
    writer = lines.writeStream.format("fairlane").trigger(availableNow=True)
    writer = writer.options(redis=server.url, request="lines")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    in_thread(Thread, lambda: writer.start().awaitTermination())
    with server.client() as client:
        assert bodies_in(client, "lines") == [b"one", b"two"]


def in_format(session: SparkSession, server: Any) -> Any:
    return session.read.format("fairlane").options(redis=server.url, view="workers").load().count()


def test_a_second_session_registers_the_format_and_both_read(spark: Any, server: Any):
    other = spark.newSession()
    register(other)
    register(other)
    assert in_format(other, server) == 0
    assert in_format(spark, server) == 0


def test_a_session_reads_while_another_one_is_active(spark: Any, server: Any):
    """Spark looks for the format in the active session, which need not be the frame's."""
    registered, other = spark.newSession(), spark.newSession()
    register(registered)
    other.createDataFrame([], "n int")  # the active one by now
    assert in_format(registered, server) == 0
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(other._jsparkSession)


def test_without_wrapped_calls_the_methods_of_spark_are_its_own(spark: Any, tmp_path: Path):
    """Each wrapped method has the mark, and a program that wants none of them has none."""
    program = tmp_path / "plain.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "from fairlane.spark import register\n"
        "from fairlane.spark.data_source import is_wrapped\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.bindAddress', '127.0.0.1').getOrCreate()\n"
        "register(spark, wrap_calls=False)\n"
        "print('wrapped', is_wrapped())\n"
        "register(spark)\n"
        "print('wrapped', is_wrapped())\n"
        "spark.stop()\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["wrapped", "False", "wrapped", "True"]


# ------------------------------------------------------------------ our own errors


def test_a_refused_write_raises_one_sentence(spark: Any, server: Any):
    with pytest.raises(InvalidArgument) as caught:
        write(numbers(spark, 5, 1), server.url, request="r1", prioritty=1)
    assert str(caught.value).startswith('option "prioritty" is not known: did you mean priority?')
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None, "Python prints no traceback of Spark's above it"


def test_a_refused_read_raises_one_sentence(spark: Any, server: Any):
    source = spark.read.format("fairlane").option("redis", server.url)
    with pytest.raises(InvalidArgument, match=r"^.{1,200}$"):
        source.option("view", "result").load()


def test_a_refused_stream_raises_one_sentence(spark: Any, server: Any, tmp_path: Path):
    """Spark adds an UnboundLocalError of its own where a stream reader is not made."""
    source = spark.readStream.format("fairlane").option("redis", server.url)
    stream = source.option("startingOffsets", "first").load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(InvalidArgument, match=r'^option "startingOffsets" is') as caught:
        query.awaitTermination()
    assert caught.value.__context__ is None
    shown = str(query.exception())
    assert "UnboundLocalError" not in shown


def test_an_error_of_spark_itself_is_left_as_it_is(spark: Any):
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as caught:
        numbers(spark, 5, 1).write.format("no.such.format").save()
    assert ours(caught.value) is None


def test_a_collect_that_fails_carries_the_error(spark: Any, server: Any):
    write(numbers(spark, 5, 1), server.url, request="gone")
    frame = spark.read.format("fairlane").options(redis=server.url, request="gone").load()
    with server.client() as client:
        client.flushdb()
    with pytest.raises(Exception, match="Traceback") as caught:
        frame.collect()
    found = ours(caught.value)
    assert found is not None
    assert "\n" not in str(found)
