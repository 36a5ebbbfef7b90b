"""The format is known to a session, also to one that is not active any more."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from fairlane.spark import register
from tests.spark.sinks import bodies_in, numbers, rows, write
from tests.support import servers


def test_registering_again_heals_a_session_that_is_not_active(spark: Any):
    """Ctrl-C in a stream leaves the thread without one, and Spark looks formats up in it."""
    frame = numbers(spark, 5, 1)
    with servers.run_server() as server, server.client() as client:
        SparkSession._get_j_spark_session_class(spark._jvm).clearActiveSession()
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            write(frame, server.url, request="r1")
        register(spark)
        write(frame, server.url, request="r1")
        assert bodies_in(client, "r1") == rows(5)
