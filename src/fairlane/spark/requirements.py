"""Checks that a fitting Spark and a Java are installed."""

from __future__ import annotations

import os
import re
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fairlane.errors import SparkMissing

OLDEST = (4, 2)  # the first with admission control for sources written in Python
NEWEST = (5, 0)  # not this one
_INSTALL = "run `pip install '.[spark]'` in a clone of Fairlane"


@cache
def need_spark() -> None:
    """Raises SparkMissing unless pyspark of a fitting version and pyarrow are installed."""
    installed = _version_of("pyspark")
    if not installed:
        raise SparkMissing(f"pyspark is not installed: {_INSTALL}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:2])
    if not OLDEST <= numbers < NEWEST:
        raise SparkMissing(
            f"pyspark {installed} does not fit: Spark >= {OLDEST[0]}.{OLDEST[1]} and "
            f"< {NEWEST[0]} is needed; {_INSTALL}"
        )
    if not _version_of("pyarrow"):
        raise SparkMissing(f"pyarrow is not installed: {_INSTALL}")


def need_java() -> None:
    """Raises SparkMissing unless there is a Java that Spark's driver can be started with."""
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        raise SparkMissing(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it")
    if not home and shutil.which("java") is None:
        raise SparkMissing(
            "Spark needs Java 17 or newer and none was found: install it "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
