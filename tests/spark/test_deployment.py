"""Tests Spark where it is no session of this program: under spark-submit, and on Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import nullcontext
from pathlib import Path

import pytest

from fairlane.errors import SparkMissing
from fairlane.spark import spark_session
from tests.spark.processes import skip_without_java
from tests.support.wheel import build_wheel

pyspark = pytest.importorskip("pyspark")

END_S = 400.0
ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
HANDLERS = "def shout(body: bytes) -> bytes:\n    return body.upper()\n"
SUBMITTED = """
import sys

from handlers import shout
from pyspark.sql import functions as f

import fairlane
from fairlane.spark import run_fleet, session

assert fairlane.__file__.endswith("fairlane.zip/fairlane/__init__.py"), fairlane.__file__
spark = session()
rows = spark.range(100).select("id", f.format_string("row %d", "id").alias("body"))
rows.write.format("fairlane").options(request="r1", keyColumn="id").mode("append").save()
run_fleet(spark, shout, workers=1, until_idle=True).collect()
results = spark.sql("SELECT key, cast(result AS string) FROM fairlane_results('r1')").collect()
assert {tuple(row) for row in results} == {(str(n), f"ROW {n}") for n in range(100)}
"""
CONNECTED = """
from threading import Thread

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from fairlane.spark import ours, queue_udf, register, run_fleet, stop_fleet

url = URL
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
rows = spark.range(100).select("id", f.format_string("row %d", "id").alias("body"))
to_c1 = {"redis": url, "request": "c1", "keyColumn": "id"}
rows.write.format("fairlane").options(**to_c1).mode("append").save()


def shout(body):
    return body.upper()


(summary,) = run_fleet(spark, shout, redis=url, workers=1, until_idle=True).collect()
assert summary.done == 100
query = f"SELECT key, cast(result AS string) FROM fairlane_results('c1', redis => '{url}')"
assert {tuple(row) for row in spark.sql(query).collect()} == {
    (str(n), f"ROW {n}") for n in range(100)
}

options = {"redis": url, "workers": 1, "max_idle_s": None}
fleet = Thread(target=run_fleet, args=(spark, shout), kwargs=options)
fleet.start()
answers = queue_udf(rows, redis=url, timeout_s=300)
assert answers.where("cast(result AS string) = upper(body)").count() == 100
stop_fleet(redis=url)
fleet.join()

Path("incoming").mkdir()
Path("incoming/1.txt").write_text("one\\ntwo\\n")
lines = spark.readStream.text("incoming").withColumnRenamed("value", "body")
writer = lines.writeStream.format("fairlane").options(redis=url, request="lines")
writer = writer.option("checkpointLocation", "in").trigger(availableNow=True)
writer.start().awaitTermination()
endings = spark.readStream.format("fairlane").option("redis", url).load()
writer = endings.writeStream.format("memory").queryName("endings").trigger(availableNow=True)
writer.start().awaitTermination()
assert "c1" in [row.id for row in spark.sql("SELECT id FROM endings").collect()]

try:
    rows.write.format("fairlane").options(redis=url, request="c1").mode("append").save()
except Exception as error:
    assert "c1" in str(ours(error)), error
else:
    raise AssertionError("the same request was written twice")
spark.stop()
"""


def run(words: list[str], env: dict[str, str], folder: Path) -> str:
    """Returns what the program printed; it must end well."""
    log = folder / "log"
    with log.open("wb") as out:
        done = subprocess.run(
            words, cwd=folder, env=env, stdout=out, stderr=out, timeout=END_S, check=False
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    return log.read_text()


def python_without_fairlane(folder: Path) -> Path:
    """Returns a Python that has all installed packages but this one.

    It has pyspark as a cluster's Spark has it: no package that pip installed.
    """
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "fairlane" not in path.name and not path.match("pyspark-*"):
            (packages / path.name).symlink_to(path)
    venv.create(folder / "bare", symlinks=True)
    (site,) = (folder / "bare" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "bare" / "bin" / "python"


@pytest.mark.parametrize(("version", "fits"), [("4.0.2-amzn-0", False), ("4.2.0", True)])
def test_the_version_is_that_of_the_spark_which_is_imported(
    monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
):
    monkeypatch.setattr(pyspark, "__version__", version)
    expected = nullcontext() if fits else pytest.raises(SparkMissing, match="amzn-0 does not fit")
    with expected:
        spark_session.need_spark.__wrapped__()


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.timeout(2 * END_S)
@ON_ONE_KIND
def test_the_wheel_is_sent_by_py_files(redis_url: str, tmp_path: Path):
    """As docs/how-to/connect/spark.md says: the wheel under a name that ends in .zip."""
    skip_without_java()
    python = str(python_without_fairlane(tmp_path))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [python, "-c", "import fairlane"]
    assert subprocess.run(words, env=env, capture_output=True, check=False).returncode == 1
    (tmp_path / "dist").mkdir()
    shutil.copy(build_wheel(tmp_path / "dist"), tmp_path / "fairlane.zip")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "job.py").write_text(SUBMITTED)
    env |= {"FAIRLANE_REDIS": redis_url, "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    words = [submit, "--master", "local[2]", "--py-files", "fairlane.zip,handlers.py", "job.py"]
    run(words, env, tmp_path)


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.timeout(2 * END_S)
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")
@ON_ONE_KIND
def test_a_session_of_spark_connect(redis_url: str, tmp_path: Path):
    skip_without_java()
    program = "from pathlib import Path\n" + CONNECTED.replace("URL", repr(redis_url), 1)
    env = {name: value for name, value in os.environ.items() if name != "FAIRLANE_REDIS"}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    run([sys.executable, "-c", program], env, tmp_path)
