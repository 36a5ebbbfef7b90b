"""Fixtures of the tests of Spark's scripts."""

from __future__ import annotations

from tests.scripts.conftest import sink

__all__ = ["sink"]
